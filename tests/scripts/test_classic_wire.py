"""Classic groups over a socket: every version of the four APIs, and what only a version decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.classic_member import HEARTBEAT, JOIN, LEAVE, SYNC
from tests.kit.member import Member, subscription
from tests.kit.wire import RawClient, request, request_of_version
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics


@pytest.fixture
async def client(valkey: ValkeyServer) -> AsyncIterator[RawClient]:
    """A connection to a broker of its own."""
    port = free_port()
    settings = Settings(
        redis_url=valkey.url,
        key_prefix=f"tidegate:wire-{port}",
        port=port,
        admin_port=free_port(),
        group_initial_rebalance_delay_ms=0,
    )
    app = App(settings)
    await app.start()
    connected = await RawClient.connect(f"127.0.0.1:{port}")
    yield connected
    await connected.close()
    await app.close()


async def another(client: RawClient) -> RawClient:
    """One more connection to the same broker."""
    host, port = client.writer.get_extra_info("peername")
    return await RawClient.connect(f"{host}:{port}")


def join(version: int, group_id: str, member_id: str = "", **fields: Any) -> Any:
    """JoinGroup in any version."""
    values = {
        "group_id": group_id, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": member_id,
        "protocol_type": "consumer", "protocols": [protocol(subscription(["t"]))],
    }  # fmt: skip
    return request_of_version(JOIN, version, **(values | fields))


def sync(version: int, group_id: str, member_id: str, generation: int, **fields: Any) -> Any:
    """SyncGroup in any version; the member assigns itself its own id."""
    values = {
        "group_id": group_id, "generation_id": generation, "member_id": member_id, "protocol_type": "consumer",
        "protocol_name": "range", "assignments": [{"member_id": member_id, "assignment": member_id.encode()}],
    }  # fmt: skip
    return request_of_version(SYNC, version, **(values | fields))


def heartbeat(version: int, group_id: str, member_id: str, generation: int) -> Any:
    """Heartbeat in any version."""
    return request(HEARTBEAT, version, group_id=group_id, member_id=member_id, generation_id=generation)


def leave(version: int, group_id: str, member_id: str) -> Any:
    """LeaveGroup in any version."""
    members = [{"member_id": member_id}]
    return request_of_version(LEAVE, version, group_id=group_id, member_id=member_id, members=members)


async def test_versions_complete_one_round_each(client: RawClient) -> None:
    for version in range(10):
        group_id = f"g{version}"
        joined = await client.ask(join(version, group_id))
        if version >= 4:
            assert joined.error_code is ErrorCode.member_id_required
            assert joined.generation_id == -1 and joined.leader == "" and not joined.members
            joined = await client.ask(join(version, group_id, joined.member_id))
        assert joined.error_code is ErrorCode.none
        assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
        assert [member.member_id for member in joined.members] == [joined.member_id]
        assert getattr(joined, "protocol_type", "consumer") == "consumer"
        member_id = joined.member_id

        synced = await client.ask(sync(min(version, 5), group_id, member_id, 1))
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, member_id.encode())
        answer = await client.ask(heartbeat(min(version, 4), group_id, member_id, 1))
        assert answer.error_code is ErrorCode.none
        answer = await client.ask(heartbeat(min(version, 4), group_id, member_id, 2))
        assert answer.error_code is ErrorCode.illegal_generation
        left = await client.ask(leave(min(version, 5), group_id, member_id))
        assert left.error_code is ErrorCode.none
        answer = await client.ask(heartbeat(min(version, 4), group_id, member_id, 1))
        assert answer.error_code is ErrorCode.unknown_member_id


async def test_scenario_13_an_error_encodes_at_every_version(client: RawClient) -> None:
    for version in range(10):
        refused = await client.ask(join(version, "absent", "x"))
        assert refused.error_code is ErrorCode.unknown_member_id
        assert (refused.member_id, refused.generation_id, refused.leader) == ("x", -1, "")
        assert refused.protocol_name == (None if version >= 7 else "")


async def test_scenario_8_an_empty_group_id_is_refused_first(client: RawClient) -> None:
    for version in range(10):
        refused = await client.ask(join(version, "", "x", session_timeout=timedelta(milliseconds=5_999)))
        assert (refused.error_code, refused.member_id) == (ErrorCode.invalid_group_id, "x")
        refused = await client.ask(join(version, "g", "x", session_timeout=timedelta(milliseconds=5_999)))
        assert (refused.error_code, refused.member_id) == (ErrorCode.invalid_session_timeout, "x")
    assert (await client.ask(sync(4, "", "x", 1))).error_code is ErrorCode.invalid_group_id
    assert (await client.ask(heartbeat(4, "", "x", 1))).error_code is ErrorCode.invalid_group_id
    assert (await client.ask(leave(5, "", "x"))).error_code is ErrorCode.invalid_group_id


async def test_scenario_46_version_5_names_its_protocol(client: RawClient) -> None:
    for fields in ({"protocol_type": None}, {"protocol_name": None}):
        refused = await client.ask(sync(5, "", "x", 1, **fields))
        assert (refused.error_code, refused.assignment) == (ErrorCode.inconsistent_group_protocol, b"")


async def test_scenario_61_field_of_a_leaves_error(client: RawClient) -> None:
    for version in range(6):
        left = await client.ask(leave(version, "absent", "x"))
        if version <= 2:
            assert left.error_code is ErrorCode.unknown_member_id
        else:
            assert left.error_code is ErrorCode.none
            assert [(member.member_id, member.error_code) for member in left.members] == [
                ("x", ErrorCode.unknown_member_id)
            ]


async def test_parked_join_closed_connection_finds_its_place_again(client: RawClient) -> None:
    a = Member(client, "parked", session_timeout_ms=6_000)
    await a.round()
    other = await another(client)
    b = Member(other, "parked", session_timeout_ms=6_000)
    response = await other.ask(b.join_request())
    b.member_id = response.member_id
    waiting = asyncio.ensure_future(other.ask(b.join_request()))
    await asyncio.sleep(0.2)
    await other.close()
    await asyncio.gather(waiting, return_exceptions=True)

    third = await another(client)
    b.client = third
    again = asyncio.ensure_future(b.join())
    await asyncio.sleep(0.1)
    assert not again.done()
    joined = await a.join()
    assert (await again).generation_id == joined.generation_id == 2
    await third.close()


async def test_errors_inside_answers_are_counted(client: RawClient) -> None:
    code = ErrorCode.unknown_member_id.value
    asked = {
        HEARTBEAT: heartbeat(4, "absent", "x", 1),
        JOIN: join(9, "absent", "x"),
        LEAVE: leave(5, "absent", "x"),
        SYNC: sync(5, "absent", "x", 1),
    }
    for api_key, one in asked.items():
        before = metrics.apis[api_key].errors.get(code, 0)
        await client.ask(one)
        assert metrics.apis[api_key].errors[code] == before + 1


@pytest.mark.parametrize("version", range(10))
async def test_fields_of_a_refused_join(client: RawClient, version: int) -> None:
    refused = await client.ask(join(version, "absent", "x"))
    assert (refused.generation_id, refused.leader, refused.members) == (-1, "", ())
    assert getattr(refused, "protocol_type", None) is None
    assert getattr(refused, "skip_assignment", False) is False
    refused = await client.ask(join(version, f"bare-{version}", "", protocols=()))
    assert (refused.error_code, refused.member_id) == (ErrorCode.inconsistent_group_protocol, "")


@pytest.mark.parametrize("version", range(6))
async def test_fields_of_a_refused_sync(client: RawClient, version: int) -> None:
    refused = await client.ask(sync(version, "absent", "x", 1))
    assert (refused.error_code, refused.assignment) == (ErrorCode.unknown_member_id, b"")
    assert getattr(refused, "protocol_type", None) is None and getattr(refused, "protocol_name", None) is None


@pytest.mark.parametrize("version", range(3, 6))
async def test_batch_leaves_in_the_order_asked_for(client: RawClient, version: int) -> None:
    group_id = f"batch-{version}"
    static = await client.ask(join(9, group_id, group_instance_id="s1"))
    asked = [("nobody", None), ("", "s1"), ("", "s1"), (static.member_id, "s1")]
    members = [{"member_id": one, "group_instance_id": instance} for one, instance in asked]

    left = await client.ask(request(LEAVE, version, group_id=group_id, members=members))

    assert left.error_code is ErrorCode.none
    assert [(one.member_id, one.group_instance_id) for one in left.members] == asked
    unknown = ErrorCode.unknown_member_id
    assert [one.error_code for one in left.members] == [unknown, ErrorCode.none, unknown, unknown]
    nobody = await client.ask(request(LEAVE, version, group_id=group_id, members=()))
    assert (nobody.error_code, nobody.members) == (ErrorCode.none, ())


async def test_clients_reasons_reach_the_group(client: RawClient, valkey: ValkeyServer) -> None:
    a = Member(client, "reasons")
    await a.round()
    rejoin = await client.ask(
        join(9, "reasons", a.member_id, protocols=[protocol(b"changed")], reason="topics changed")
    )
    assert rejoin.error_code is ErrorCode.none
    assert await reason(valkey, "reasons") == "subscription changed: topics changed"
    await a.leave()
    assert await reason(valkey, "reasons") == "member left: the test is over"


def protocol(metadata: bytes) -> dict[str, Any]:
    return {"name": "range", "metadata": metadata}


async def reason(valkey: ValkeyServer, group_id: str) -> str:
    """Why the group rebalanced last."""
    store = Store(Settings(redis_url=valkey.url))
    await store.start()
    (key,) = await store.command("KEYS", f"*:group:default:{group_id}")
    value: bytes = await store.command("HGET", key, "reason")
    await store.close()
    return value.decode()
