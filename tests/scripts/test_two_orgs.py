"""Two organisations with the same names, one of them hostile: nothing of the other is seen, counted or changed.

The hostile one has every right in its own organisation, and calls any API in any order with the names, the topic id,
the member id and the producer id of the other. The other's keys stay as they are, byte for byte, and no answer has
anything that only they have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError

from tests.conformance.differential.authorization_calls import CALLS, Resources
from tests.kit.wire import request
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.store import Store

VICTIM, HOSTILE = "acme", "umbrella"
SECRET = "acme-only"
"""In what nobody else has: records, ids of clients and members, metadata of commits."""
TOPIC, GROUP, TRANSACTIONAL_ID = "orders", "orders", "transfers"
WAIT = timedelta(seconds=10)


@dataclass
class Stage:
    """A broker, the victim's things, and the hostile client."""

    whole: WholeBroker
    topic_id: UUID
    member_id: str
    producer_id: int
    hostile: ClientOf

    async def of_victim(self) -> dict[tuple[bytes, bytes], bytes]:
        """Every key and field of the victim with its content."""
        found: dict[tuple[bytes, bytes], bytes] = {}
        command, name = self.whole.store.command, VICTIM.encode()
        for key in await command("KEYS", "*"):
            if name in key:
                found[key, b""] = await command("DUMP", key)
            elif (kind := await command("TYPE", key)) == b"hash":
                flat = await command("HGETALL", key)
                pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
                found.update({(key, field): value for field, value in pairs if name in field or name in value})
            elif kind in (b"zset", b"set"):
                members = await command(*(("ZRANGE", key, 0, -1) if kind == b"zset" else ("SMEMBERS", key)))
                found.update({(key, member): b"" for member in members if name in member})
        return found


def _transactional(key: int, version: int, **values: Any) -> Any:
    return request(key, version, transactional_id=TRANSACTIONAL_ID, **values)


@pytest.fixture
async def stage(store: Store, settings: Settings) -> AsyncIterator[Stage]:
    """The victim has a topic with records, a group with a member and an offset, and a transactional id."""
    whole = await WholeBroker(settings).start()
    topic = await whole.create(TOPIC, 2, org=VICTIM)
    victim = whole.client(f"{SECRET}-app", "10.9.9.9", org=VICTIM)
    batch = build_batch([NewRecord(SECRET.encode(), SECRET.encode(), 1_700_000_000_000)])
    partition = {"index": 0, "records": batch}
    produced = {"name": TOPIC, "partition_data": [partition]}
    await victim.ask(request(0, 9, transactional_id=None, acks=-1, timeout=WAIT, topic_data=[produced]))
    await victim.own(TOPIC, 0)
    await victim.commit(TOPIC, 1)
    await whole.create(SECRET, 1, org=VICTIM)
    made = await victim.ask(_transactional(22, 4, transaction_timeout=WAIT))
    assert made.error_code is ErrorCode.none
    hostile = whole.client("hostile", org=HOSTILE)
    await whole.noted()
    yield Stage(whole, topic.topic_id, victim.member_id, int(made.producer_id), hostile)
    await whole.close()


def attacks(stage: Stage) -> dict[str, Any]:
    """What a call about names alone does not try."""
    member = {"member_id": stage.member_id}
    marker_topic = {"name": TOPIC, "partition_indexes": [0]}
    marker = {
        "producer_id": stage.producer_id, "producer_epoch": 0, "transaction_result": False,
        "coordinator_epoch": 0, "topics": [marker_topic],
    }  # fmt: skip
    config = {"name": "retention.ms", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [config]}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    fetched = {"topic_id": stage.topic_id, "partitions": [partition]}
    quota = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
    org = {"entity_type": "org", "entity_name": VICTIM}
    return {
        "fetch by id": request(
            1, 13, max_wait=WAIT * 0, min_bytes=0, session_epoch=-1, topics=[fetched], forgotten_topics_data=[]
        ),
        "remove the member": request(13, 5, group_id=GROUP, members=[member]),
        "heartbeat as the member": request(12, 4, group_id=GROUP, generation_id=1, member_id=stage.member_id),
        "end the transaction": _transactional(
            26, 3, producer_id=stage.producer_id, producer_epoch=0, committed=True
        ),
        "write markers": request(27, 1, markers=[marker]),
        "take the transactional id": _transactional(22, 4, transaction_timeout=WAIT),
        "alter configs": request(44, 1, resources=[resource], validate_only=False),
        "grow": request(37, 3, timeout=WAIT, validate_only=False, topics=[
            {"name": TOPIC, "count": 9, "assignments": None}]),
        "limit the other org": request(49, 1, validate_only=False, entries=[
            {"entity": [org], "ops": [quota]}]),
    }  # fmt: skip


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
async def test_hostile_org_reads_and_changes_nothing_of_another(stage: Stage, data: st.DataObject) -> None:
    before = await stage.of_victim()
    assert len(before) > 10
    own = attacks(stage)
    names = [call.name for call in CALLS] + list(own)
    by_name = {call.name: call for call in CALLS}
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=25)):
        topic_id = data.draw(st.sampled_from([stage.topic_id, UUID(int=1), uuid4()]))
        asked = own[name] if name in own else by_name[name].build(Resources(TOPIC, GROUP, TRANSACTIONAL_ID, topic_id))
        try:
            answer = repr(await stage.hostile.ask(asked))
        except SerialError:  # kio reads no time of -1, which a transaction has that does not exist
            assert name == "DescribeTransactions"
            continue
        assert SECRET not in answer.replace(stage.member_id, ""), name
        assert VICTIM not in answer.replace(stage.member_id, "") or VICTIM in repr(asked), name

    assert await stage.of_victim() == before
