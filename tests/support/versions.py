"""The served versions whose messages have classes, by API key, and tests of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tidegate.apis.registry import load_all
from tidegate.protocol.versions import OLD_VERSIONS

VERSIONS: Final = {
    key: (max(api.first, OLD_VERSIONS.get(key, (0, -1))[1] + 1), api.last) for key, api in sorted(load_all().items())
}
"""First and last, both inclusive; the versions below are `OLD_VERSIONS`."""


def in_every_version(check: Callable[..., None]) -> Callable[[int], None]:
    """A test for each API, of `check(api_key, version)` in all its versions; each version that fails is reported.

    A test for each version would take longer to collect than to run: there are 270.
    """

    def test(api_key: int) -> None:
        first, last = VERSIONS[api_key]
        failures = [error for version in range(first, last + 1) if (error := _failure(check, api_key, version))]
        if failures:
            raise ExceptionGroup(f"{len(failures)} versions of API {api_key}", failures)

    test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
    return pytest.mark.parametrize("api_key", VERSIONS)(test)


def _failure(check: Callable[..., None], api_key: int, version: int) -> Exception | None:
    try:
        check(api_key=api_key, version=version)
    except Exception as error:  # noqa: BLE001 - it is raised with those of the other versions
        error.add_note(f"in version {version}")
        return error
    return None
