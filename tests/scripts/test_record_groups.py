"""Kafka groups on a topic of format record are Redis consumer groups: what XINFO GROUPS and XPENDING show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.scripts.test_record_log import read
from tests.support.record_topics import two_brokers
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.apis import committed_offsets
from tidegate.monitoring.lag_reading import LagReader
from tidegate.records.entry_ids import RecordIds
from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store

KEY = "tidegate:{default/r:0}:records"
IDS = RecordIds(10)


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    async with two_brokers(settings) as opened:
        yield opened


async def member(broker: WholeBroker, client_id: str = "app", group: str = "orders") -> ClientOf:
    """A member of a group that owns the partition, alone."""
    client = broker.client(client_id)
    client.group_id = group
    await client.join("r")
    await client.sync({client.member_id: {"r": [0]}})
    return client


async def offsets(store: Store) -> list[int]:
    found = [IDS.offset_of(one) for one, _ in await store.command("XRANGE", KEY, "-", "+")]
    return [one for one in found if one is not None]


async def position(store: Store, group: str = "orders") -> str | None:
    """The offset that a Redis group reads next, as its last delivered id."""
    for one in await store.command("XINFO", "GROUPS", KEY):
        if one[b"name"] == group.encode():
            return str(one[b"last-delivered-id"].decode())
    return None


async def pending(store: Store, group: str = "orders") -> dict[str, list[int]]:
    """Member -> the offsets pending for it."""
    rows: list[Any] = await store.command("XPENDING", KEY, group, "-", "+", 1000)
    found: dict[str, list[int]] = {}
    for entry_id, owner, *_ in rows:
        found.setdefault(owner.decode(), []).append(IDS.end_of(entry_id) - 1)
    return found


async def test_fetch_by_member_is_pending_until_committed(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)

    first = await read(client, 0)
    delivered = await pending(store)
    code = await client.commit("r", all_offsets[6])

    assert [one.offset for one in first] == all_offsets
    assert delivered == {client.member_id: all_offsets}
    assert code is ErrorCode.none
    assert await pending(store) == {client.member_id: all_offsets[6:]}
    assert await position(store) == IDS.id_of(all_offsets[-1])
    await client.commit("r", all_offsets[-1] + 1)
    assert await pending(store) == {}
    assert await position(store) == IDS.id_before(await client.committed("r"))


async def test_fetch_within_its_bytes_delivers_exactly_what_it_answers(
    brokers: list[WholeBroker], store: Store
) -> None:
    client = await member(brokers[0])
    await client.produce("r", *[1] * 20)

    found = await read(client, 0, partition_max_bytes=300)

    assert 1 <= len(found) < 30
    assert await pending(store) == {client.member_id: [one.offset for one in found]}
    rest = await read(client, found[-1].offset + 1)
    assert [one.offset for one in found + rest] == await offsets(store)


async def test_seek_moves_the_redis_group(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    await client.commit("r", all_offsets[-1] + 1)

    again = await read(client, all_offsets[4])

    assert [one.offset for one in again] == all_offsets[4:]
    assert await pending(store) == {client.member_id: all_offsets[4:]}


async def test_rebalance_hands_pending_entries_to_the_new_owner(brokers: list[WholeBroker], store: Store) -> None:
    first, all_offsets = await member(brokers[0]), await offsets(store)
    await read(first, 0)
    await first.commit("r", all_offsets[3])
    leave = await first.ask(_leave(first))
    assert leave.error_code is ErrorCode.none
    second = await member(brokers[1], "other")

    found = await read(second, await second.committed("r"), partition_max_bytes=200)

    assert found[0].offset == all_offsets[3]
    assert await pending(store) == {second.member_id: all_offsets[3:]}
    consumers = await store.command("XINFO", "CONSUMERS", KEY, "orders")
    assert [one[b"name"].decode() for one in consumers] == [second.member_id]


@pytest.mark.one_server
async def test_one_script_stores_and_acknowledges_a_commit(
    brokers: list[WholeBroker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    sent: list[str] = []
    send_script = Store.send_script

    def send(self: Store, script: Script, *rest: Any) -> None:
        sent.append(script.name)
        send_script(self, script, *rest)

    monkeypatch.setattr(Store, "send_script", send)
    await client.commit("r", all_offsets[5])

    assert sent == ["groups/commit_offsets"]
    assert await pending(store) == {client.member_id: all_offsets[5:]}


async def test_commit_that_is_refused_acknowledges_nothing(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    client.generation += 1

    assert await client.commit("r", all_offsets[5]) is ErrorCode.illegal_generation

    assert await pending(store) == {client.member_id: all_offsets}


async def test_commit_is_stored_where_the_stream_is_a_key_of_another_type(
    brokers: list[WholeBroker], store: Store
) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await store.command("DEL", KEY)
    await store.command("SET", KEY, "not a stream")

    assert await client.commit("r", all_offsets[5]) is ErrorCode.none

    assert await client.committed("r") == all_offsets[5]


@pytest.mark.one_server
async def test_commit_with_a_lost_acknowledgement_is_repaired_at_the_next_read(
    brokers: list[WholeBroker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Redis Cluster, where a broker may die between the two scripts."""
    first, all_offsets = await member(brokers[0]), await offsets(store)
    await read(first, 0)
    monkeypatch.setattr(committed_offsets, "record_commits", lambda *_: [])
    await first.commit("r", all_offsets[5])
    assert len((await pending(store))[first.member_id]) == 10

    first.broker = brokers[1]
    await read(first, all_offsets[-1] + 1)

    assert await pending(store) == {first.member_id: all_offsets[5:]}


async def test_group_that_exists_is_preserved(brokers: list[WholeBroker], store: Store) -> None:
    """BUSYGROUP is ignored."""
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await store.command("XGROUP", "CREATE", KEY, "orders", "0-0")

    assert len(await read(client, all_offsets[5])) == 5
    assert await pending(store) == {client.member_id: all_offsets[5:]}


async def test_client_without_a_group_reads_beside(brokers: list[WholeBroker], store: Store) -> None:
    await member(brokers[0])
    reader = brokers[0].client("reader")

    assert len(await read(reader, 0)) == 10
    assert await position(store) is None


async def test_ambiguous_clients_read_and_commit_moves_the_group(brokers: list[WholeBroker], store: Store) -> None:
    one, other = await member(brokers[0]), await member(brokers[0], group="others")
    all_offsets = await offsets(store)

    assert len(await read(one, 0)) == 10
    assert await position(store) is None
    await one.commit("r", all_offsets[4])

    assert await position(store) == IDS.id_before(all_offsets[4])
    assert await pending(store) == {}
    assert len(await read(other, 0)) == 10


async def test_connections_distinguish_members_with_the_same_client(brokers: list[WholeBroker], store: Store) -> None:
    one, all_offsets = await member(brokers[0]), await offsets(store)
    await read(one, 0, partition_max_bytes=200)
    other = await member(brokers[0], group="others")

    await read(other, 0)
    await read(one, all_offsets[0])

    assert await pending(store, "others") == {other.member_id: all_offsets}
    assert await pending(store, "orders") == {one.member_id: all_offsets}


async def test_connection_closed_while_it_asks_for_the_owner_leaves_the_member_to_the_next_one(
    brokers: list[WholeBroker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await member(brokers[0])
    asked, answers, command = asyncio.Event(), asyncio.Event(), brokers[0].store.command

    async def command_when_allowed(*args: Any, **options: Any) -> Any:
        if args[0] == "HGETALL" and args[1].endswith(":owners"):
            asked.set()
            await answers.wait()
        return await command(*args, **options)

    monkeypatch.setattr(brokers[0].store, "command", command_when_allowed)
    first = asyncio.create_task(read(client, 0))
    async with asyncio.timeout(60):
        await asked.wait()
        client.client.end()
        answers.set()
        await first

    await client.produce("r", 1)
    again = brokers[0].client("app")
    await read(again, 0)

    assert await pending(store) == {client.member_id: await offsets(store)}
    groups = brokers[0].context.logs.record_groups
    assert {number for number, *_ in groups._readers} == set(groups._connections) == {again.client.connection_id}


async def test_redis_program_in_a_group_of_its_own(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await store.command("XGROUP", "CREATE", KEY, "program", "0")
    found = await store.node(KEY).control.call("XREADGROUP", "GROUP", "program", "p", "COUNT", 3, "STREAMS", KEY, ">")

    await read(client, 0)

    assert found
    assert await pending(store, "program") == {"p": all_offsets[:3]}
    assert await pending(store) == {client.member_id: all_offsets}


async def test_position_is_the_lower_commit_when_idle(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    await client.commit("r", all_offsets[-1] + 1)

    await client.commit("r", all_offsets[2])

    assert await position(store) == IDS.id_before(all_offsets[2])


async def test_entries_beyond_the_bits_are_acknowledged_with_the_next_commit(
    brokers: list[WholeBroker], store: Store
) -> None:
    client = await member(brokers[0])
    last = (await offsets(store))[-1]
    await store.command("XADD", KEY, f"{(last >> 10) + 5}-3000", "value", "beyond")
    await client.produce("r", 1)

    found = await read(client, last + 1)
    assert len(found) == 1
    await client.commit("r", found[0].offset + 1)

    assert await pending(store) == {}


def _leave(client: ClientOf) -> Any:
    from tests.kit.wire import request

    member = {"member_id": client.member_id, "group_instance_id": None, "reason": None}
    return request(13, 5, group_id=client.group_id, members=[member])


async def test_lag_counts_records_not_offsets(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    topic = brokers[0].context.catalog.get("default", "r")
    assert topic is not None
    lag_reader = LagReader(store, lambda org, name: topic, lambda _: None)

    async def lag(*positions: int) -> list[int]:
        ends = (await lag_reader.read_ends_of({("default", ("r", 0)): positions}))["default", ("r", 0)]
        return [ends.lag(one) for one in positions]

    assert await lag(0, all_offsets[0], all_offsets[4], all_offsets[-1] + 1) == [10, 10, 6, 0]
    found = await read(client, 0, partition_max_bytes=600)
    await client.commit("r", found[1].offset)
    [shown] = await store.command("XINFO", "GROUPS", KEY)
    assert shown[b"lag"] == 10 - len(found)
    assert await lag(found[1].offset) == [9]
    await store.command("XTRIM", KEY, "MINID", IDS.id_of(all_offsets[3]))
    assert await lag(0, found[1].offset) == [7, 7]


async def test_committed_offset_of_a_group_that_a_program_created(brokers: list[WholeBroker], store: Store) -> None:
    """A deployment whose Redis groups exist moves over: they continue at what is not acknowledged."""
    all_offsets = await offsets(store)
    await store.command("XGROUP", "CREATE", KEY, "orders", IDS.id_of(all_offsets[3]))
    nobody = brokers[0].client()
    assert await nobody.committed("r") == all_offsets[4]
    await store.node(KEY).control.call("XREADGROUP", "GROUP", "orders", "old", "COUNT", 2, "STREAMS", KEY, ">")
    assert await nobody.committed("r") == all_offsets[4]
    nobody.group_id = "unknown"
    assert await nobody.committed("r") == -1

    client = await member(brokers[0])
    assert [one.offset for one in await read(client, await client.committed("r"))] == all_offsets[4:]

    assert await pending(store) == {client.member_id: all_offsets[4:]}
    assert await client.committed("r") == -1  # a Kafka group now, without a commit
