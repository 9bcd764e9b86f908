"""The hand-written answers are byte for byte what the schema's writer gives, for any values."""

from __future__ import annotations

import datetime
import io
import uuid
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tidegate.protocol import codec, group_writers, log_writers
from tidegate.protocol.schemas import load_response_schema
from tidegate.protocol.versions import Fields

NO_TIME = datetime.timedelta(0)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
codes = st.sampled_from(list(ErrorCode)).map(lambda code: code.value)
text = st.one_of(st.text(max_size=12), st.text("x", min_size=120, max_size=140))
maybe_text = st.none() | text
blob = st.binary(max_size=300)
some = settings(max_examples=40, deadline=None)


def versions(first: int, last: int) -> Any:
    return pytest.mark.parametrize("version", range(first, last + 1))


def expected(api_key: int, version: int, **values: Any) -> bytes:
    """What kio writes, from an object that has the fields by name."""
    buffer = io.BytesIO()
    entity_writer(load_response_schema(api_key, version))(buffer, Fields(None, throttle_time=NO_TIME, **values))
    return buffer.getvalue()


@versions(0, 4)
@some
@given(code=codes)
def test_heartbeat(version: int, code: int) -> None:
    assert group_writers.heartbeat(version, code) == expected(12, version, error_code=ErrorCode(code))


def labels(version: int, topics: Any) -> Any:
    """Names as they are; from v10 on ids made of them, "" for none."""
    if version < 10:
        return topics
    return [(UUID(bytes=sha256(name.encode()).digest()[:16]) if name else None, rest) for name, rest in topics]


@versions(2, 10)
@some
@given(topics=st.lists(st.tuples(text, st.lists(st.tuples(int32, codes), max_size=4)), max_size=4))
def test_offset_commit(version: int, topics: Any) -> None:
    topics = labels(version, topics)
    answer = tuple(
        Fields(
            None,
            name=label,
            topic_id=label,
            partitions=tuple(
                Fields(None, partition_index=index, error_code=ErrorCode(code)) for index, code in partitions
            ),
        )
        for label, partitions in topics
    )
    assert group_writers.offset_commit(version, topics) == expected(8, version, topics=answer)


fetched_topics = st.lists(
    st.tuples(text, st.lists(st.tuples(int32, int64, int32, maybe_text, codes), max_size=4)), max_size=3
)


@versions(1, 10)
@some
@given(groups=st.lists(st.tuples(text, codes, fetched_topics), min_size=1, max_size=3))
def test_offset_fetch(version: int, groups: Any) -> None:
    groups = [(group_id, code, labels(version, topics)) for group_id, code, topics in groups]
    answer = tuple(
        Fields(
            None,
            group_id=group_id,
            error_code=ErrorCode(code),
            topics=tuple(
                Fields(
                    None,
                    name=label,
                    topic_id=label,
                    partitions=tuple(
                        Fields(
                            None,
                            partition_index=index,
                            committed_offset=offset,
                            committed_leader_epoch=epoch,
                            metadata=metadata,
                            error_code=ErrorCode(partition_code),
                        )
                        for index, offset, epoch, metadata, partition_code in partitions
                    ),
                )
                for label, partitions in topics
            ),
        )
        for group_id, code, topics in groups
    )
    response = Fields(None, throttle_time=NO_TIME, groups=answer)
    assert group_writers.offset_fetch(version, groups) == codec.encode(9, version, response)


coordinator = st.tuples(text, int32, text, int32, codes, maybe_text)


@versions(0, 6)
@some
@given(coordinators=st.lists(coordinator, min_size=1, max_size=3))
def test_find_coordinator(version: int, coordinators: Any) -> None:
    answer = tuple(
        Fields(None, key=key, node_id=node_id, host=host, port=port, error_code=ErrorCode(code), error_message=message)
        for key, node_id, host, port, code, message in coordinators[: None if version >= 4 else 1]
    )
    response = Fields(None, throttle_time=NO_TIME, coordinators=answer)
    assert group_writers.find_coordinator(version, coordinators) == codec.encode(10, version, response)


@versions(0, 9)
@some
@given(
    code=codes,
    generation=int32,
    protocol_type=maybe_text,
    protocol=maybe_text,
    leader=text,
    member_id=text,
    members=st.lists(st.tuples(text, maybe_text, blob), max_size=5),
    skip=st.booleans(),
)
def test_join_group(
    version: int,
    code: int,
    generation: int,
    protocol_type: str | None,
    protocol: str | None,
    leader: str,
    member_id: str,
    members: Any,
    skip: bool,
) -> None:
    response = Fields(
        None,
        throttle_time=NO_TIME,
        error_code=ErrorCode(code),
        generation_id=generation,
        protocol_type=protocol_type,
        protocol_name=protocol,
        leader=leader,
        skip_assignment=skip,
        member_id=member_id,
        members=tuple(
            Fields(None, member_id=joined, group_instance_id=instance, metadata=metadata)
            for joined, instance, metadata in members
        ),
    )
    written = group_writers.join_group(
        version, code, generation, protocol_type, protocol, leader, member_id, members, skip
    )
    assert b"".join(written) == codec.encode(11, version, response)


@versions(0, 5)
@some
@given(code=codes, protocol_type=maybe_text, protocol=maybe_text, assignment=blob)
def test_sync_group(
    version: int, code: int, protocol_type: str | None, protocol: str | None, assignment: bytes
) -> None:
    assert group_writers.sync_group(version, code, protocol_type, protocol, assignment) == expected(
        14,
        version,
        error_code=ErrorCode(code),
        protocol_type=protocol_type,
        protocol_name=protocol,
        assignment=assignment,
    )


produced = st.tuples(
    int32,
    codes,
    int64,
    st.just(-1) | st.integers(0, 4_102_444_800_000),
    int64,
    st.lists(st.tuples(int32, maybe_text), max_size=3),
    maybe_text,
)
topic_ids = st.uuids().filter(lambda found: found.int != 0)


@versions(3, 13)
@some
@given(topics=st.lists(st.tuples(text, topic_ids, st.lists(produced, max_size=3)), max_size=3))
def test_produce(version: int, topics: Any) -> None:
    schema = load_response_schema(0, version)
    answer = tuple(
        Fields(
            None,
            name=name,
            topic_id=topic_id,
            partition_responses=tuple(produced_partition(version, *partition) for partition in partitions),
        )
        for name, topic_id, partitions in topics
    )
    plain = [(topic_id.bytes if version >= 13 else name, partitions) for name, topic_id, partitions in topics]
    written = log_writers.produce(version, plain)
    assert written == expected(0, version, responses=answer, node_endpoints=())
    assert entity_reader(schema)(written, 0)[1] == len(written)


def produced_partition(
    version: int, index: int, code: int, base: int, time_ms: int, start: int, errors: Any, message: str | None
) -> Fields:
    from pkgutil import resolve_name

    schema = resolve_name(f"kio.schema.produce.v{version}.response:PartitionProduceResponse")
    leader = schema.__dataclass_fields__.get("current_leader")
    return Fields(
        None,
        index=index,
        error_code=ErrorCode(code),
        base_offset=base,
        log_append_time=None if time_ms == -1 else EPOCH + datetime.timedelta(milliseconds=time_ms),
        log_start_offset=start,
        record_errors=tuple(
            Fields(None, batch_index=batch_index, batch_index_error_message=text) for batch_index, text in errors
        ),
        error_message=message,
        current_leader=leader.default if leader is not None else None,
    )


fetched = st.builds(
    lambda buffers, **values: log_writers.FetchPartition(
        buffers=buffers, size=sum(len(buffer) for buffer in buffers), **values
    ),
    index=int32,
    error_code=codes,
    high_watermark=int64,
    last_stable_offset=int64,
    log_start_offset=int64,
    aborted=st.none() | st.lists(st.tuples(int64, int64), max_size=3),
    buffers=st.lists(st.one_of(blob, st.just(bytes(5000)), blob.map(memoryview), blob.map(bytearray)), max_size=3),
    diverging=st.none() | st.tuples(int32.filter(lambda epoch: epoch != -1), int64),
    leader=st.none() | st.tuples(int32.filter(lambda node_id: node_id != -1), int32),
)


@versions(4, 18)
@some
@given(
    code=codes,
    session_id=int32,
    topics=st.lists(st.tuples(text, topic_ids, st.lists(fetched, max_size=3)), max_size=3),
    endpoints=st.lists(st.tuples(int32, text, int32, st.none() | text), max_size=3),
)
def test_fetch(version: int, code: int, session_id: int, topics: Any, endpoints: Any) -> None:
    answer = tuple(
        Fields(
            None,
            topic=name,
            topic_id=topic_id,
            partitions=tuple(fetched_partition(version, partition) for partition in partitions),
        )
        for name, topic_id, partitions in topics
    )
    plain: list[tuple[str | bytes, list[log_writers.FetchPartition]]] = [
        (topic_id.bytes if version >= 13 else name, partitions) for name, topic_id, partitions in topics
    ]
    written = log_writers.fetch(version, code, session_id, plain, endpoints)
    assert b"".join(written) == expected(
        1,
        version,
        error_code=ErrorCode(code),
        session_id=session_id,
        responses=answer,
        node_endpoints=tuple(
            Fields(None, node_id=node_id, host=host, port=port, rack=rack) for node_id, host, port, rack in endpoints
        ),
    )


def fetched_partition(version: int, partition: log_writers.FetchPartition) -> Fields:
    from pkgutil import resolve_name

    module = f"kio.schema.fetch.v{version}.response"
    data = resolve_name(f"{module}:PartitionData").__dataclass_fields__
    tagged = {name: data[name].default for name in ("diverging_epoch", "current_leader", "snapshot_id") if name in data}
    if partition.diverging is not None and version >= 12:
        epoch, end = partition.diverging
        tagged["diverging_epoch"] = resolve_name(f"{module}:EpochEndOffset")(epoch=epoch, end_offset=end)
    if partition.leader is not None and version >= 12:
        leader_id, epoch = partition.leader
        tagged["current_leader"] = resolve_name(f"{module}:LeaderIdAndEpoch")(leader_id=leader_id, leader_epoch=epoch)
    aborted = partition.aborted
    return Fields(
        None,
        partition_index=partition.index,
        error_code=ErrorCode(partition.error_code),
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else tuple(Fields(None, producer_id=producer, first_offset=first) for producer, first in aborted),
        preferred_read_replica=-1,
        records=b"".join(partition.buffers),
        **tagged,
    )


def test_large_records_are_not_copied() -> None:
    records = bytes(100_000)
    partition = log_writers.FetchPartition(index=0, buffers=[records], size=len(records))
    written = log_writers.fetch(18, 0, 0, [(uuid.UUID(int=7).bytes, [partition])])
    assert any(buffer is records for buffer in written)


features = st.lists(st.tuples(text, int16, int16), max_size=3)


@versions(0, 5)
@some
@given(
    code=codes,
    apis=st.lists(st.tuples(int16, int16, int16), max_size=60),
    supported=features,
    finalized=features,
    epoch=int64,
)
def test_api_versions(version: int, code: int, apis: Any, supported: Any, finalized: Any, epoch: int) -> None:
    reported = [feature for feature in supported if version >= 4 or feature[1] > 0]
    assert log_writers.api_versions(version, code, apis, supported, finalized, epoch) == expected(
        18,
        version,
        error_code=ErrorCode(code),
        api_keys=tuple(Fields(None, api_key=key, min_version=first, max_version=last) for key, first, last in apis),
        supported_features=tuple(
            Fields(None, name=name, min_version=low, max_version=high) for name, low, high in reported
        ),
        finalized_features=tuple(
            Fields(None, name=name, max_version_level=high, min_version_level=low) for name, high, low in finalized
        ),
        finalized_features_epoch=epoch,
        zk_migration_ready=False,
    )
