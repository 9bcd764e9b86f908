"""The guide to the Kafka protocol: its grammars in bytes, and one connection that asks with them."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from tests.kit.wire import RawClient
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.settings import Settings

PRODUCE, FETCH, OFFSETS, METADATA, COMMIT, OFFSET_FETCH, COORDINATOR = 0, 1, 2, 3, 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, API_VERSIONS = 11, 12, 13, 14, 15, 16, 18
LATEST, EARLIEST = -1, -2
EVERY_API = range(17)
NO_ERROR, OUT_OF_RANGE, CORRUPT, UNKNOWN_PARTITION, MESSAGE_SIZE = 0, 1, 2, 3, 4
TOO_LARGE, METADATA_TOO_LARGE, ACKS, GENERATION, PROTOCOL, GROUP_ID = 10, 12, 21, 22, 23, 24
MEMBER, SESSION_TIMEOUT, REBALANCING, INVALID_TOPIC = 25, 26, 27, 17


def i16(*values: int) -> bytes:
    return struct.pack(f">{len(values)}h", *values)


def i32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


def i64(*values: int) -> bytes:
    return struct.pack(f">{len(values)}q", *values)


def string(text: str | None) -> bytes:
    return i16(-1) if text is None else i16(len(text.encode())) + text.encode()


def blob(data: bytes | None) -> bytes:
    return i32(-1) if data is None else i32(len(data)) + data


def array(*elements: bytes) -> bytes:
    return i32(len(elements)) + b"".join(elements)


def message(offset: int, key: bytes | None, value: bytes | None, timestamp: int | None = None) -> bytes:
    """Message => Crc MagicByte Attributes [Timestamp] Key Value, in a message set."""
    start = b"\0\0" if timestamp is None else b"\1\0" + i64(timestamp)
    body = start + blob(key) + blob(value)
    return i64(offset) + i32(len(body) + 4) + struct.pack(">I", crc32(body)) + body


@dataclass(slots=True)
class Asking:
    """One connection; `ask` sends a body and returns the response's body."""

    client: RawClient
    port: int
    app: App
    correlation_id: int = 0

    async def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        self.write(api_key, version, body)
        answer = await asyncio.wait_for(self.client.receive_frame(), 40)
        assert answer[:4] == i32(self.correlation_id)
        return answer[4:]

    def write(self, api_key: int, version: int, body: bytes) -> None:
        self.correlation_id += 1
        payload = i16(api_key, version) + i32(self.correlation_id) + string("guide") + body
        self.client.writer.write(i32(len(payload)) + payload)

    async def neighbour(self) -> Asking:
        """Another connection to the same broker."""
        return Asking(await RawClient.connect(f"127.0.0.1:{self.port}"), self.port, self.app)

    async def topic(self, **configs: str) -> str:
        """A new topic of two partitions."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        await self.app.broker.context.catalog.create("default", name, 2, dotted, uuid.uuid4())
        return name

    async def produce(self, topic: str, *sets: bytes, version: int = 0) -> bytes:
        partitions = array(*[i32(index) + blob(data) for index, data in enumerate(sets)])
        return await self.ask(PRODUCE, version, i16(-1) + i32(5_000) + array(string(topic) + partitions))

    async def fetch(self, topic: str, offset: int, max_bytes: int = 1 << 20, version: int = 0, index: int = 0) -> bytes:
        whole = i32(1 << 20) if version >= 3 else b""
        partition = array(i32(index) + i64(offset) + i32(max_bytes))
        return await self.ask(FETCH, version, i32(-1, 0, 1) + whole + array(string(topic) + partition))


@asynccontextmanager
async def broker_of_the_guide(valkey: ValkeyServer, **settings: Any) -> AsyncIterator[Asking]:
    """A broker, and a connection to it."""
    port = free_port()
    values: dict[str, Any] = {
        "redis_url": valkey.url,
        "key_prefix": f"tidegate:guide-{port}",
        "advertised_listeners": f"PLAINTEXT://guide.example:{port}",
        "group_initial_rebalance_delay_ms": 0,
        **settings,
    }
    app = App(Settings(port=port, admin_port=free_port(), **values))
    await app.start()
    client = await RawClient.connect(f"127.0.0.1:{port}")
    try:
        yield Asking(client, port, app)
    finally:
        await client.close()
        await app.close()


def fetched(topic: str, code: int, high_watermark: int, data: bytes, index: int = 0) -> bytes:
    """FetchResponse => [TopicName [Partition ErrorCode HighwaterMarkOffset MessageSetSize MessageSet]]."""
    return array(string(topic) + array(i32(index) + i16(code) + i64(high_watermark) + blob(data)))


def produced(topic: str, *partitions: tuple[int, int], after: bytes = b"") -> bytes:
    """ProduceResponse => [TopicName [Partition ErrorCode Offset]]."""
    return array(
        string(topic)
        + array(*[i32(index) + i16(code) + i64(offset) + after for index, (code, offset) in enumerate(partitions)])
    )


def commit_body(version: int, group: str, topic: str, index: int, offset: int, metadata: str | None) -> bytes:
    member = i32(-1) + string("") if version else b""
    retention = i64(-1) if version == 2 else b""
    timestamp = i64(-1) if version == 1 else b""
    partition = array(i32(index) + i64(offset) + timestamp + string(metadata))
    return string(group) + member + retention + array(string(topic) + partition)


def committed(topic: str, index: int, code: int) -> bytes:
    return array(string(topic) + array(i32(index) + i16(code)))


def fetched_offset(topic: str, index: int, offset: int, metadata: str, code: int = NO_ERROR) -> bytes:
    return array(string(topic) + array(i32(index) + i64(offset) + string(metadata) + i16(code)))
