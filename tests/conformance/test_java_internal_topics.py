"""Apache Kafka's own decoder of `__consumer_offsets` reads what brokers publish of KIP-848 and share groups."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.test_java import jars, java
from tests.kit.wire import request
from tests.support.internal_topics import published_topics
from tests.support.transactions import MARKER_WAIT_S
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.names import CONSUMER_OFFSETS

assert jars  # the fixture

pytestmark = pytest.mark.peer

RECORD = re.compile(r"key: (\{.*\}) payload: (\{.*\})$", re.M)


def decoded(jars: str, segment: Path) -> dict[str, dict[str, Any]]:
    """Type of the record -> its value, by `kafka-dump-log.sh`."""
    text = java(jars, "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(segment))
    found = [(json.loads(key), json.loads(value)) for key, value in RECORD.findall(text)]
    return {key["type"]: value["data"] for key, value in found}


async def test_java_decoder_reads_members(store: Store, settings: Settings, jars: str, tmp_path: Path) -> None:
    consumer = {
        "group_id": "consumers", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",), "topic_partitions": (),
    }  # fmt: skip
    sharer = {"group_id": "sharers", "member_id": "s", "member_epoch": 0, "subscribed_topic_names": ("t",)}
    found: dict[str, dict[str, Any]] = {}
    async with published_topics(settings) as topics:
        await topics.brokers.ask(request(68, 1, **consumer))
        await topics.brokers.ask(request(76, 1, **sharer))
        await topics.publish()
        async with asyncio.timeout(MARKER_WAIT_S):
            while not any(key[:2] == b"\0\x0f" for key, _ in await topics.records("sharers")):
                await topics.publish()  # share-partitions begin in the background
        for group in ("consumers", "sharers"):
            folder = tmp_path / group
            folder.mkdir()
            segment = folder / f"{0:020}.log"
            batches = await topics.batches(group, CONSUMER_OFFSETS)
            segment.write_bytes(b"".join(bytes(batch.buffer) for batch in batches))
            found |= decoded(jars, segment)
    assert sorted(found, key=int) == ["3", "5", "6", "7", "8", "10", "11", "12", "13", "14", "15"]
    assert found["5"]["subscribedTopicNames"] == found["10"]["subscribedTopicNames"] == ["t"]
    for kind, field in (("7", "topicPartitions"), ("8", "assignedPartitions"), ("13", "topicPartitions"),
                        ("14", "assignedPartitions"), ("15", "initializedTopics")):  # fmt: skip
        assert [one["partitions"] for one in found[kind][field]] == [[0, 1]], kind
