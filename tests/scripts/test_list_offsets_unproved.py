"""ListOffsets while the high watermark is not known: after a load whose proof failed (KIP-207)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request_of_version
from tests.support.log_broker import Connection, LogBroker, produce_request
from tests.support.logs import batch_bytes
from tidegate.errors import OffsetNotAvailable
from tidegate.http.stored_offsets import StoredOffsets
from tidegate.log.partition import PartitionLog
from tidegate.settings import Settings
from tidegate.store.store import Store

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture
async def unproved(store: Store, settings: Settings) -> AsyncIterator[tuple[Connection, PartitionLog]]:
    """Topic t: records with timestamps 1000 to 1009, of which the first 6 were proved before all replicas left."""
    own = Settings(**{**settings.model_dump(), "durability": "replicated:1", "durability_timeout_ms": 50})
    broker = await LogBroker.start(own)
    client = broker.connect()
    log = broker.logs.partition(await broker.create("t"), 0)
    for number in range(10):
        records = batch_bytes(timestamp=1_000 + number)
        await client.ask(produce_request([("t", [(0, records)])], acks=1))
    await store.command("HSET", log.keys.meta, "high_watermark", 6)
    log.void("another broker appended")
    yield client, log
    await broker.close()


async def listed(client: Connection, timestamp: int, version: int) -> Any:
    """The offset, or the error code."""
    asked = {"partition_index": 0, "timestamp": timestamp}
    topics = [{"name": "t", "partitions": [asked]}]
    answer = await client.ask(request_of_version(2, version, replica_id=-1, isolation_level=0, topics=topics))
    one = answer.topics[0].partitions[0]
    return one.offset if one.error_code is ErrorCode.none else one.error_code


@pytest.mark.parametrize("version", [1, 2, 4, 5, 9])
async def test_list_offsets_latest_unproved_is_not_available(
    unproved: tuple[Connection, PartitionLog], version: int
) -> None:
    client, _ = unproved
    refused = ErrorCode.offset_not_available if version >= 5 else ErrorCode.leader_not_available
    assert await listed(client, LATEST, version) is refused
    assert await listed(client, EARLIEST, version) == 0
    assert await listed(client, 1_005, version) == 5
    assert await listed(client, 1_006, version) is refused


async def test_list_offsets_max_timestamp_unproved_is_not_above_what_was_proved(
    unproved: tuple[Connection, PartitionLog],
) -> None:
    client, _ = unproved
    assert await listed(client, MAX_TIMESTAMP, 7) == 5


async def test_list_offsets_after_the_proof_answers_all(unproved: tuple[Connection, PartitionLog]) -> None:
    client, log = unproved
    assert await listed(client, LATEST, 9) is ErrorCode.offset_not_available
    state = log.state
    assert state is not None
    state.high_watermark = state.end  # as a proof leaves it
    assert await listed(client, LATEST, 9) == 10
    assert await listed(client, 1_006, 9) == 6
    assert await listed(client, 1_010, 9) == -1


async def test_offset_reset_by_rest_reads_no_end_that_is_not_known(unproved: tuple[Connection, PartitionLog]) -> None:
    """It committed the stored high watermark as the latest offset, behind records that were acknowledged."""
    client, log = unproved
    source = StoredOffsets(client.broker.context, "default")
    for timestamp in (LATEST, 1_006):
        with pytest.raises(OffsetNotAvailable):
            await source.offsets_at({("t", 0): timestamp})
    assert await source.offsets_at({("t", 0): EARLIEST}) == {("t", 0): 0}
    assert log.state is not None
    log.state.high_watermark = log.state.end  # as a proof leaves it
    assert await source.offsets_at({("t", 0): LATEST}) == {("t", 0): 10}
