"""throttle_time_ms is written where each version has it, and nothing else of a body changes."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from tests.support.samples import sample
from tests.support.versions import in_every_version
from tidegate.apis.call import Body
from tidegate.protocol import codec, log_writers
from tidegate.protocol.schemas import load_response_schema
from tidegate.protocol.throttle_time import with_throttle_time


@in_every_version
def test_every_version_changes_only_its_throttle_time(api_key: int, version: int) -> None:
    entity = load_response_schema(api_key, version)
    whole = sample(entity)

    body = b"".join(with_throttle_time(api_key, version, codec.written(entity, whole), 1234))

    read, size = codec.entity_reader(entity)(body, 0)
    if "throttle_time" in {field.name for field in dataclasses.fields(entity)}:
        assert read.throttle_time == datetime.timedelta(milliseconds=1234)
        whole = dataclasses.replace(whole, throttle_time=read.throttle_time)
    assert read == whole
    assert size == len(body)


@pytest.mark.parametrize("version", [1, 3, 9, 13])
def test_produce_is_throttled_behind_its_topics(version: int) -> None:
    plain: Any = log_writers.produce(version, []) if version >= 3 else b"\0\0\0\0" * 2
    body = b"".join(with_throttle_time(0, version, plain, 0x01020304))

    assert body.removesuffix(b"\0" if version >= 9 else b"").endswith(b"\1\2\3\4")
    assert len(body) == len(plain)


def test_records_are_not_copied() -> None:
    records = bytes(100_000)
    partition = log_writers.FetchPartition(index=0, buffers=[records], size=len(records))
    body: list[Body] = log_writers.fetch(12, 0, 0, [("t", [partition])])

    throttled = with_throttle_time(1, 12, body, 7)

    assert throttled[1] is records
    assert bytes(throttled[0])[:4] == b"\0\0\0\7"
    assert bytes(body[0])[:4] == b"\0\0\0\0"  # answers may be shared by several requests


def test_versions_without_the_field_are_unchanged() -> None:
    assert with_throttle_time(12, 0, b"\0\0", 5) == [b"\0\0"]
    assert with_throttle_time(1, 0, b"\0\0\0\0", 5) == [b"\0\0\0\0"]
