"""Tests of every version of an API."""

from __future__ import annotations

import pytest

from tests.support.versions import VERSIONS, in_every_version


def test_in_every_version_checks_each_and_reports_each_failure() -> None:
    checked: list[tuple[int, int]] = []

    def check(api_key: int, version: int) -> None:
        checked.append((api_key, version))
        assert version not in (2, 4)

    with pytest.raises(ExceptionGroup) as failed:
        in_every_version(check)(12)

    assert checked == [(12, version) for version in range(VERSIONS[12][0], VERSIONS[12][1] + 1)]
    assert [error.__notes__ for error in failed.value.exceptions] == [["in version 2"], ["in version 4"]]
