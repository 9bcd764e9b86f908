"""The answer of DescribeConfigs, written piece by piece.

Thousands of groups or topics have the same configs, which are some kilobytes each: their bytes are written once.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsSynonym
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.codec import written
from tidegate.protocol.primitives import uvarint
from tidegate.protocol.versions import Fields
from tidegate.topics.configs import Described

ANSWER_BYTES_MAX: Final = 64 << 20
"""As of a large Fetch: the configs of 40,000 topics, which a client asks for at once. Equal ones share their bytes."""
_FLEXIBLE_FROM: Final = 4
_THROTTLE_TIME: Final = bytes(4)
_NO_TAGS: Final = b"\0"


class DescribedConfigs:
    """One answer; `request` says what is reported of each config."""

    def __init__(self, version: int, request: Any) -> None:
        self._request = request
        self._flexible = version >= _FLEXIBLE_FROM
        module = load_payload_module(ApiKey.DESCRIBE_CONFIGS, version, EntityType.response)
        self._entity: type[Any] = module.DescribeConfigsResult
        self._count = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._of_resource: dict[Hashable, tuple[bytes, bytes]] = {}
        self._written: dict[tuple[Described, ...], bytes] = {}

    @property
    def is_full(self) -> bool:
        """Whether the answer has as many bytes as one may have."""
        return self._size >= ANSWER_BYTES_MAX

    def repeat(self, resource: Any) -> bool:
        """Add what was added for an equal resource of the request, if one was."""
        found = self._of_resource.get(_key(resource))
        if found is not None:
            self._append(*found)
        return found is not None

    def add(self, resource: Any, found: Sequence[Described], code: ErrorCode, message: str | None) -> None:
        """The configs of one resource, or its error."""
        head = Fields(
            error_code=code, error_message=message, resource_type=resource.resource_type,
            resource_name=resource.resource_name, configs=(),
        )  # fmt: skip
        prefix = written(self._entity, head)[: -self._size_without_configs]
        wanted = set(resource.configuration_keys or ())
        configs = tuple(one for one in found if not wanted or one.name in wanted)
        written_configs = self._written.get(configs)
        if written_configs is None:
            whole = Fields(head, configs=tuple(map(self._result, configs)))
            written_configs = self._written[configs] = written(self._entity, whole)[len(prefix) :]
        if code is ErrorCode.none:
            self._of_resource[_key(resource)] = prefix, written_configs
        self._append(prefix, written_configs)

    def _append(self, prefix: bytes, written_configs: bytes) -> None:
        self._count += 1
        self._size += len(prefix) + len(written_configs)
        self._parts += (prefix, written_configs)

    def parts(self) -> list[bytes]:
        """The body."""
        count = uvarint(self._count + 1) if self._flexible else struct.pack(">i", self._count)
        return [_THROTTLE_TIME + count, *self._parts, *([_NO_TAGS] if self._flexible else ())]

    @property
    def _size_without_configs(self) -> int:
        """Bytes of an empty list of configs, and of what follows it."""
        return 1 + len(_NO_TAGS) if self._flexible else 4

    def _result(self, config: Described) -> DescribeConfigsResourceResult:
        synonyms: Iterable[Any] = config.synonyms if self._request.include_synonyms else ()
        values: dict[str, Any] = {
            "name": config.name,
            "value": config.value,
            "read_only": config.read_only,
            "config_source": int(config.source),
            "is_sensitive": False,
            "synonyms": tuple(
                DescribeConfigsSynonym(name=one.name, value=one.value, source=int(one.source))  # type: ignore[arg-type]
                for one in synonyms
            ),
            "config_type": int(config.type),
            "documentation": config.doc if self._request.include_documentation else None,
        }
        return DescribeConfigsResourceResult(**values)


def _key(resource: Any) -> Hashable:
    return resource.resource_type, resource.resource_name, frozenset(resource.configuration_keys or ())
