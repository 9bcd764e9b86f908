"""One connection of a share consumer to a broker: requests are answered in order."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
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
from tidegate.share.sasl import Sasl

_VERSIONS: Final = {
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.METADATA: 12,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
}
_LIMIT_BYTES: Final = 1 << 26
_REAUTHENTICATE_AT: Final = 0.9
"""Of the session's lifetime."""


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

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        sasl: Sasl | None = None,
    ) -> None:
        self._host, self._port, self._client_id = host, port, client_id.encode()
        self._tls, self._timeout_s, self._sasl = tls, timeout_s, sasl
        self._authenticate_again_s = math.inf
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self._number = 0

    async def ask(self, api: ApiKey, wait_s: float = 0.0, **values: Any) -> Any:
        """The response to a request, which may take `wait_s` longer than others. Raises ShareError."""
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s + wait_s):
                    if self._streams is None:
                        await self._open()
                    elif asyncio.get_running_loop().time() >= self._authenticate_again_s:
                        await self._authenticate()  # on the same connection (KIP-368)
                    return await self._exchange(api, **values)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, SerialError) as error:
                await self.close()
                raise ShareError(f"{self._host}:{self._port} does not answer: {error!r}") from error
            except BaseException:
                await self.close()  # the response of a cancelled request must not answer the next one
                raise

    async def _open(self) -> None:
        self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT_BYTES)
        if self._sasl is not None:
            await self._authenticate()

    async def _authenticate(self) -> None:
        """Prove the user. Raises ShareError with SASL_AUTHENTICATION_FAILED or UNSUPPORTED_SASL_MECHANISM."""
        assert self._sasl is not None
        raise_for(await self._exchange(ApiKey.SASL_HANDSHAKE, mechanism=self._sasl.mechanism))
        messages = self._sasl.messages()
        try:
            message = await anext(messages)
            while True:
                answer = await self._exchange(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
                raise_for(answer)
                message = await messages.asend(bytes(answer.auth_bytes))
        except StopAsyncIteration:
            lifetime_s = answer.session_lifetime.total_seconds()
            again_s = lifetime_s * _REAUTHENTICATE_AT if lifetime_s > 0 else math.inf
            self._authenticate_again_s = asyncio.get_running_loop().time() + again_s
        except ValueError as error:
            raise ShareError(str(error), ErrorCode.sasl_authentication_failed) from error
        finally:
            await messages.aclose()

    async def _exchange(self, api: ApiKey, **values: Any) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        self._number = (self._number + 1) & 0x7FFF_FFFF
        body, version, message = io.BytesIO(), _VERSIONS[api], _request_class(api)(**values)
        flexible = bool(type(message).__flexible__)
        body.write(struct.pack(">hhih", api, version, self._number, len(self._client_id)))
        body.write(self._client_id + b"\x00" * flexible)  # no tagged fields
        entity_writer(type(message))(body, message)
        writer.write(struct.pack(">i", body.tell()) + body.getvalue())
        await writer.drain()
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        payload = await reader.readexactly(size)
        return entity_reader(load_response_schema(api, version))(payload, 4 + flexible)[0]

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
