"""The old API versions that the codec supports besides, and an object that overlays the fields of a response."""

from __future__ import annotations

from typing import Any, Final

from tidegate.protocol.api_keys import ApiKey

OLD_VERSIONS: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (0, 2),
    ApiKey.FETCH: (0, 3),
    ApiKey.LIST_OFFSETS: (0, 0),
    ApiKey.OFFSET_COMMIT: (0, 1),
    ApiKey.OFFSET_FETCH: (0, 0),
}
"""API key -> versions, both inclusive, that Kafka 4.0 removed (KIP-896) and kio does not have; `old_requests.py` and
`old_responses.py` serve them."""


def is_old(api_key: int, version: int) -> bool:
    """Whether a served version is one of `OLD_VERSIONS`."""
    return api_key in OLD_VERSIONS and version <= OLD_VERSIONS[api_key][1]


class Fields:
    """An object with the given attributes on top of another object's: `Fields(response, topics=())`."""

    def __init__(self, base: Any = None, /, **values: Any) -> None:
        self.__dict__.update(values)
        self.__dict__["_base"] = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.__dict__.items() if name != "_base"}
        return f"Fields({self.__dict__['_base']!r}, {shown!r})"
