"""A raw Kafka client for tests: one connection, any API at any version, written and read by kio."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from functools import cache
from typing import Any, Final

from kio.serial import entity_reader, entity_writer

from tidegate.protocol.schema_walk import plan_of
from tidegate.protocol.schemas import load_request_schema, load_response_schema

_DESCRIBE_TRANSACTIONS: Final = 65
"""A transaction that has not begun has the time -1, which kio does not read; it is read as 0."""


@cache
def _writer(api_key: int, version: int) -> Any:
    return entity_writer(load_request_schema(api_key, version))


@cache
def _reader(api_key: int, version: int) -> Any:
    return entity_reader(load_response_schema(api_key, version))


@cache
def request_type(api_key: int, version: int) -> Any:
    """kio's class of a request; nested classes are found in its module."""
    return load_request_schema(api_key, version)


@cache
def _answer_header(api_key: int, version: int) -> int:
    return int(load_response_schema(api_key, version).__header_schema__.__version__)


def encode_request(request: Any, correlation_id: int, client_id: str | None = "raw") -> bytes:
    """A whole frame: length, header, body."""
    schema = type(request)
    api_key, version = int(schema.__api_key__), int(schema.__version__)
    header = struct.pack(">hhi", api_key, version, correlation_id)
    header += struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    if schema.__header_schema__.__version__ == 2:
        header += b"\x00"
    body = io.BytesIO()
    _writer(api_key, version)(body, request)
    payload = header + body.getvalue()
    return struct.pack(">i", len(payload)) + payload


def decode_response(api_key: int, version: int, frame: bytes) -> tuple[int, Any]:
    """Correlation id and response of a frame without its length; the whole frame must be used up."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    offset = 4
    if _answer_header(api_key, version) == 1:
        assert frame[4] == 0, "response header carries tags"
        offset = 5
    if api_key == _DESCRIBE_TRANSACTIONS:
        plan = plan_of(load_response_schema(api_key, version))
        frame = frame[:offset] + plan.rewrite(frame, offset, len(frame))
    response, size = _reader(api_key, version)(frame, offset)
    assert offset + size == len(frame), f"{len(frame) - offset - size} bytes left over"
    return correlation_id, response


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
