"""Owners of partitions: what the broker notes is read, whatever else is there is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidegate.log.owners import Owned, Owner, parse_owners

OWNER = Owner("cgp_1", 3, "a-1", "a", "/127.0.0.1")


def record(**changes: Any) -> bytes:
    fields = {"id": "cgp_1", "generation": 3, "member_id": "a-1", "client_id": "a", "client_host": "/127.0.0.1"}
    return json.dumps(fields | changes).encode()


@pytest.mark.parametrize(
    "strange",
    [
        record(client_id=["a"]),
        record(client_host={}),
        record(member_id=None),
        record(generation="3"),
        record(more=1),
        b"{}",
        b"[]",
        b"text",
        b"\xff",
    ],
)
def test_record_that_is_no_owner_is_left_out(strange: bytes) -> None:
    found = parse_owners({b"strange": strange, b"orders": record(), b"\xff": record()})

    assert found == {("a", "/127.0.0.1"): [Owned("orders", OWNER, record())]}
