"""The clients of a large group's members, read for each leader's assignments."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rounds import counted_rounds
from tidegate.groups import clients

MANY = 1_000
AT_ONCE = 100


async def test_clients_of_many_members_are_parsed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"client_id": "app", "client_host": "/127.0.0.1"}).encode()
    head, records = [b"cgp_1", b"7", b"m-0"], {b"m-%d" % number: text for number in range(MANY)}

    async def read(verb: str, *_: Any) -> Any:
        return head if verb == "HMGET" else records

    store: Any = SimpleNamespace(read=read)
    keys: Any = SimpleNamespace(group="group", members="members")
    with counted_rounds() as rounds:

        def counted(record: bytes) -> Any:
            rounds.note()
            return json.loads(record)

        monkeypatch.setattr(clients, "json", SimpleNamespace(loads=counted))
        found = await clients.read_clients(store, keys, 7, "m-0")

    assert found is not None and found.own_id == "cgp_1"
    assert found.clients == {f"m-{number}": ("app", "/127.0.0.1") for number in range(MANY)}
    assert rounds.total == MANY
    assert rounds.most <= AT_ONCE
