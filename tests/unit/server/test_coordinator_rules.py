"""Which keys of FindCoordinator a client may ask for, by the kind of the keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.errors import ClusterAuthorizationFailed
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.security.acls import Operation
from tidegate.server.authorization.access import Access
from tidegate.server.authorization.rules import GROUP_DENIED, RULES, TRANSACTIONAL_ID_DENIED

SHARE_KEY = "group:AAAAAAAAAAAAAAAAAAAAAA:0"


class _AccessTo:
    """A client that may describe the group `g` and the transactional id `t`, and act as a broker if `is_broker`."""

    def __init__(self, version: int = 6, *, is_broker: bool = False) -> None:
        self.call = SimpleNamespace(version=version)
        self._is_broker = is_broker

    def group(self, operation: Operation, group_id: str) -> bool:
        return (operation, group_id) == (Operation.DESCRIBE, "g")

    def transactional_id(self, operation: Operation, transactional_id: str) -> bool:
        return (operation, transactional_id) == (Operation.DESCRIBE, "t")

    def cluster(self, operation: Operation) -> bool:
        return self._is_broker and operation is Operation.CLUSTER_ACTION


def _judged(access: _AccessTo, key_type: int, *keys: str) -> Any:
    asked = Fields(key_type=key_type, coordinator_keys=keys)
    return RULES[ApiKey.FIND_COORDINATOR](cast(Access, access), asked)


@pytest.mark.parametrize(("key_type", "own", "code"), [(0, "g", GROUP_DENIED), (1, "t", TRANSACTIONAL_ID_DENIED)])
def test_keys_are_judged_one_by_one(key_type: int, own: str, code: Any) -> None:
    verdict = _judged(_AccessTo(), key_type, own, "other")

    assert verdict.allowed.coordinator_keys == (own,)
    assert [(part.coordinator_keys, denied) for part, denied in verdict.denied] == [(("other",), code)]
    assert _judged(_AccessTo(), key_type, own) is None


def test_keys_of_share_partitions_are_for_brokers() -> None:
    with pytest.raises(ClusterAuthorizationFailed):
        _judged(_AccessTo(), 2, SHARE_KEY)
    assert _judged(_AccessTo(is_broker=True), 2, SHARE_KEY) is None


@pytest.mark.parametrize(("version", "key_type"), [(5, 2), (6, 9)])
def test_kinds_that_are_not_served_are_left_for_the_handler_to_refuse(version: int, key_type: int) -> None:
    assert _judged(_AccessTo(version), key_type, SHARE_KEY) is None
