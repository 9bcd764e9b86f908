"""One connection of a share consumer to a broker: requests are answered in order."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import struct
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from tidegate.protocol.api_keys import ApiKey

_VERSIONS: Final = {
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
}
_LIMIT_BYTES: Final = 1 << 26


class ShareError(Exception):
    """A request that failed: `code` is Kafka's error, None if no broker answered."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


@cache
def request_module(api: ApiKey) -> Any:
    """kio's classes of a request."""
    return load_payload_module(api, _VERSIONS[api], EntityType.request)


@cache
def _request_class(api: ApiKey) -> Any:
    found = vars(request_module(api)).values()
    return next(one for one in found if getattr(one, "__type__", None) is EntityType.request)


class Connection:
    """A connection that is opened by its first request. Not for several tasks at once, except through its lock."""

    def __init__(self, host: str, port: int, client_id: str, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._host, self._port, self._client_id = host, port, client_id.encode()
        self._tls, self._timeout_s = tls, timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self._number = 0

    async def ask(self, api: ApiKey, wait_s: float = 0.0, **values: Any) -> Any:
        """The response to a request, which may take `wait_s` longer than others. Raises ShareError."""
        body = io.BytesIO()
        version = _VERSIONS[api]
        async with self._lock:
            self._number = (self._number + 1) & 0x7FFF_FFFF
            body.write(struct.pack(">hhih", api, version, self._number, len(self._client_id)))
            body.write(self._client_id + b"\x00")  # every version here has tagged fields
            message = _request_class(api)(**values)
            entity_writer(type(message))(body, message)
            try:
                async with asyncio.timeout(self._timeout_s + wait_s):
                    payload = await self._exchange(body.getvalue())
                return entity_reader(load_response_schema(api, version))(payload, 5)[0]
            except (OSError, TimeoutError, asyncio.IncompleteReadError, SerialError) as error:
                await self.close()
                raise ShareError(f"{self._host}:{self._port} does not answer: {error!r}") from error
            except BaseException:
                await self.close()  # the response of a cancelled request must not answer the next one
                raise

    async def _exchange(self, body: bytes) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT_BYTES)
        reader, writer = self._streams
        writer.write(struct.pack(">i", len(body)) + body)
        await writer.drain()
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

    async def close(self) -> None:
        """Close it; the next request opens another one."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()


def raise_for(answer: Any) -> None:
    """Raises ShareError for an answer with an error."""
    if answer.error_code is not ErrorCode.none:
        message = getattr(answer, "error_message", None) or answer.error_code.name.upper()
        raise ShareError(message, answer.error_code)
