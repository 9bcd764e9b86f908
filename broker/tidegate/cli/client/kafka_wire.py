"""One connection of the CLI to any Kafka broker; kio encodes requests and decodes responses."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from tidegate.cli.failures import CommandFailed, describe_os_error
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.headers import request_has_tags
from tidegate.protocol.primitives import DecodeError
from tidegate.protocol.schema_walk import plan_of

VERSIONS: Final = {
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 3,  # the last version that joins in one step
    ApiKey.SYNC_GROUP: 3,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 0,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 1,
    ApiKey.PRODUCE: 8,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.STREAMS_GROUP_DESCRIBE: 0,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: 0,
    ApiKey.FETCH: 12,  # the last version that identifies topics by name
}
"""The version of each API that the commands use. Apache Kafka supports all of them from 3.8 on, those of share groups
from 4.1 on (DescribeShareGroupOffsets from 4.2 on)."""

STREAM_BYTES: Final = 1 << 26
_CONNECT_TIMEOUT_S: Final = 3.0
"""A crashed broker stays listed for some seconds; the connect time-out must not delay the others for long."""
_TIMEOUT_S: Final = 10.0


@cache
def request(api: int) -> Any:
    """kio's module of a request: its class and nested classes."""
    return load_payload_module(api, VERSIONS[api], EntityType.request)


@cache
def _class_name(api: int) -> str:
    return "".join(word.title() for word in api_key_map[api].split("_")) + "Request"


class Connection:
    """For sequential use by one caller; every failure becomes CommandFailed, chained to its cause.

    With `tls` the certificate must match `server_name`, or the host of the address.
    """

    def __init__(
        self, address: str, client_id: str, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        self.address = address
        self._tls = tls
        self._server_name = server_name
        self._client_id = client_id.encode()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._lock = asyncio.Lock()
        self._served: dict[int, tuple[int, int]] = {}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises CommandFailed, OSError."""
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise CommandFailed(f"not an address: {self.address!r} (host:port)")
        host = host.strip("[]")
        name = (self._server_name or host) if self._tls else None
        return await asyncio.open_connection(host, int(port), limit=STREAM_BYTES, ssl=self._tls, server_hostname=name)

    async def open(self) -> None:
        """Connect and fetch ApiVersions. Raises CommandFailed."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                self._reader, self._writer = await self._connect()
        except OSError as error:  # includes TimeoutError and SSLError
            raise CommandFailed(
                f"no broker answers at {self.address}: {_reported(error, _CONNECT_TIMEOUT_S)}"
            ) from error
        try:
            versions = await self.ask(ApiKey.API_VERSIONS)
        except CommandFailed:
            await self.close()
            raise
        self._served = {one.api_key: (one.min_version, one.max_version) for one in versions.api_keys}

    async def ask(self, api: int, **values: Any) -> Any:
        """Send a request given by its fields; returns its response. Raises CommandFailed."""
        (answer,) = await self.ask_all((api, values))
        return answer

    async def ask_all(self, *asked: tuple[int, Mapping[str, Any]], answers: int | None = None) -> list[Any]:
        """Send requests at once, which a broker handles in this order; returns responses.

        Those of other connections may be handled between them. With fewer `answers` than requests the remaining
        responses are not read, and the connection must be closed. Raises CommandFailed.
        """
        for api, _ in asked:
            first, last = self._served.get(int(api), (VERSIONS[api], VERSIONS[api]))
            if not first <= VERSIONS[api] <= last:
                raise CommandFailed(f"{self.address} serves {api_key_map[api]} v{first}-v{last}, not v{VERSIONS[api]}")
        frames = [self._frame(api, getattr(request(api), _class_name(api))(**values)) for api, values in asked]
        async with self._lock:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    assert self._writer is not None
                    self._writer.write(b"".join(frames))
                    return [await self._answer(api) for api, _ in asked[:answers]]
            except (OSError, asyncio.IncompleteReadError) as error:
                raise CommandFailed(f"{self.address} did not answer: {_reported(error, _TIMEOUT_S)}") from error

    def _frame(self, api: int, message: Any) -> bytes:
        body = io.BytesIO()
        body.write(struct.pack(">hhih", api, VERSIONS[api], 1, len(self._client_id)) + self._client_id)
        if request_has_tags(api, VERSIONS[api]):
            body.write(b"\x00")
        entity_writer(type(message))(body, message)
        return struct.pack(">i", body.tell()) + body.getvalue()

    async def _answer(self, api: int) -> Any:
        try:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            payload = await self._reader.readexactly(size)
            schema = load_response_schema(api, VERSIONS[api])
            start = 5 if schema.__header_schema__.__version__ == 1 else 4
            try:
                return entity_reader(schema)(payload, start)[0]
            except SerialError:  # it has something that the reader refuses and the protocol allows
                return entity_reader(schema)(plan_of(schema).rewrite(payload, start, size), 0)[0]
        except (SerialError, DecodeError, ValueError, LookupError, OverflowError):
            raise CommandFailed(f"{self.address} answered, but not in the Kafka protocol") from None

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()


def _reported(error: OSError | asyncio.IncompleteReadError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {timeout_s:g} s"
    return describe_os_error(error) if isinstance(error, OSError) else "it closed the connection"
