"""What clients of each group API get while Redis is away: a code that they retry (spec 20.7)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tidegate.apis.registry import load_all
from tidegate.errors import CoordinatorLoadInProgress, StoreUnavailable
from tidegate.server.pending_request import code_of

GROUP_APIS = (8, 10, 11, 12, 13, 14, 15, 16, 42, 47)
OFFSET_FETCH = 9


@pytest.mark.parametrize("api_key", GROUP_APIS)
def test_coordinator_is_not_available(api_key: int) -> None:
    assert code_of(load_all()[api_key].away, StoreUnavailable()) is ErrorCode.coordinator_not_available


def test_offset_fetch_code_is_one_that_old_consumers_survive() -> None:
    assert code_of(load_all()[OFFSET_FETCH].away, StoreUnavailable()) is ErrorCode.not_coordinator


@pytest.mark.parametrize("api_key", [OFFSET_FETCH, *GROUP_APIS])
def test_other_errors_are_answered_unchanged(api_key: int) -> None:
    assert code_of(load_all()[api_key].away, CoordinatorLoadInProgress()) is ErrorCode.coordinator_load_in_progress
    assert code_of(load_all()[api_key].away, ValueError()) is ErrorCode.unknown_server_error
