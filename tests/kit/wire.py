"""A raw Kafka client for tests: one connection, any API at any version."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

from bench.frames import decode_response, encode_request, frame, request, request_of_version, request_type

__all__ = ["RawClient", "decode_response", "encode_request", "frame", "request", "request_of_version", "request_type"]


class RawClient:
    """One connection. `ask` sends a request and waits; `send` and `receive` pipeline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str | None) -> None:
        self.reader, self.writer, self.client_id = reader, writer, client_id
        self._correlation_id = 0
        self._expected: dict[int, tuple[int, int]] = {}

    @classmethod
    async def connect(cls, address: str, client_id: str | None = "raw") -> RawClient:
        """Open a connection to host:port."""
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
        return cls(reader, writer, client_id)

    def send(self, request: Any) -> int:
        """Write one request; its correlation id."""
        self._correlation_id += 1
        schema = type(request)
        self._expected[self._correlation_id] = (int(schema.__api_key__), int(schema.__version__))
        self.writer.write(encode_request(request, self._correlation_id, self.client_id))
        return self._correlation_id

    async def receive_frame(self) -> bytes:
        """The next frame, without its length. Raises IncompleteReadError when the broker closed."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self) -> tuple[int, Any]:
        """The next response with its correlation id."""
        frame = await self.receive_frame()
        (correlation_id,) = struct.unpack_from(">i", frame)
        return decode_response(*self._expected.pop(correlation_id), frame)

    async def ask(self, request: Any, timeout_s: float = 40.0) -> Any:
        """Send one request and wait for its response (no other may be in flight)."""
        correlation_id = self.send(request)
        async with asyncio.timeout(timeout_s):
            received_id, response = await self.receive()
        assert received_id == correlation_id
        return response

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
