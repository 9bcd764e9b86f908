"""A raw Kafka client for measuring: requests written by kio, answered in order, one connection each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from bench import frames

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 10, 11, 12, 13, 14
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, ALTER_CONFIGS = 19, 20, 22, 44
CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT, SHARE_FETCH = 68, 76, 78

VERSIONS: Final = {
    PRODUCE: 8,
    FETCH: 11,
    LIST_OFFSETS: 6,
    METADATA: 8,
    OFFSET_COMMIT: 8,
    OFFSET_FETCH: 7,
    FIND_COORDINATOR: 3,
    JOIN_GROUP: 9,
    HEARTBEAT: 4,
    LEAVE_GROUP: 5,
    SYNC_GROUP: 5,
    CREATE_TOPICS: 5,
    DELETE_TOPICS: 5,
    INIT_PRODUCER_ID: 4,
}
"""The version of each API that is spoken here; every endpoint is measured with the same ones."""

_NEXT_GENERATION: Final = {ALTER_CONFIGS: 1, CONSUMER_GROUP_HEARTBEAT: 1, SHARE_GROUP_HEARTBEAT: 1, SHARE_FETCH: 1}
"""Those of KIP-848 and share groups, which older endpoints do not serve."""
_SPOKEN: Final = VERSIONS | _NEXT_GENERATION

_API_VERSIONS: Final = 18
_CONNECT_TIMEOUT_S: Final = 30.0


class MeasureFailed(Exception):
    """An endpoint answered something else than what is measured."""


def request(api: int, **values: Any) -> Any:
    """A request in the version that is spoken, from plain values."""
    return frames.request(api, _SPOKEN[api], **values)


def encode(message: Any, correlation_id: int = 1, client_id: str = "bench") -> bytes:
    """A whole frame: length, header, body."""
    return frames.encode_request(message, correlation_id, client_id)


def decode(api: int, payload: bytes) -> Any:
    """The response in a frame without its length."""
    return frames.decode_response(api, _SPOKEN[api], payload)[1]


class Wire(asyncio.Protocol):
    """One connection. Any number of requests may be in flight; answers come in their order."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: str) -> Wire:
        """Open a connection to host:port. Raises OSError, TimeoutError."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, wire = await loop.create_connection(cls, host, int(port))
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Give each whole frame to who waits for it."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            end = start + 4 + int.from_bytes(buffer[start : start + 4], "big")
            if len(buffer) < end:
                break
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(bytes(buffer[start + 4 : end]))
            start = end
        del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        """Fail whoever still waits."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(ConnectionError(f"connection closed: {error}"))
        self._waiting.clear()

    def send(self, frame: bytes) -> asyncio.Future[bytes]:
        """Write one frame; its answer's payload."""
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            waiter.set_exception(ConnectionError("connection closed"))
            return waiter
        self._waiting.append(waiter)
        self._transport.write(frame)
        return waiter

    async def ask(self, message: Any, timeout_s: float = 60.0) -> Any:
        """Send one request; its response."""
        async with asyncio.timeout(timeout_s):
            payload = await self.send(encode(message))
        return frames.decode_response(int(message.__api_key__), int(message.__version__), payload)[1]

    async def check_versions(self) -> None:
        """Whether what is spoken here is served. Raises MeasureFailed."""
        answer = await self._api_versions(0)
        served = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        for api, version in VERSIONS.items():
            first, last = served.get(api, (0, -1))
            if not first <= version <= last:
                raise MeasureFailed(f"{api_key_map[api]} v{version} is not served ({first}-{last})")

    async def hello(self) -> None:
        """Name the software, as clients do that speak ApiVersions v3: members behave as the Java client's do."""
        answer = await self._api_versions(3, client_software_name="apache-kafka-java", client_software_version="4.1.0")
        if answer.error_code is not ErrorCode.none:
            raise MeasureFailed(f"ApiVersions v3: {answer.error_code.name}")

    async def _api_versions(self, version: int, **values: str) -> Any:
        asked = frames.encode_request(frames.request(_API_VERSIONS, version, **values), 1, None)
        return frames.decode_response(_API_VERSIONS, version, await self.send(asked))[1]

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
