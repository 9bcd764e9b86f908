"""Frame -> handler -> reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from tidegate.admissions import Admission
from tidegate.log.offload import DECODED, ENCODED
from tidegate.protocol import codec
from tidegate.protocol.primitives import DecodeError
from tidegate.server.pending_request import PendingRequest

logger = structlog.get_logger()

LARGE_BYTES: Final = 64 * 1024
"""Requests above this many bytes are decoded in a thread: decoding their elements may take many ms."""
LARGE_ANSWER_BYTES: Final = 1 << 20
"""A request whose answer may be large takes the memory of a request of this many bytes: `ANSWER_BYTES_MAX` as bytes,
and their objects."""


def start(pending: PendingRequest) -> None:
    """Pass a request to its handler. A body that cannot be decoded closes the connection."""
    route = pending.route
    if pending.end - pending.start > LARGE_BYTES and not route.raw:
        if pending.end - pending.start > route.decoded_bytes_max:
            pending.close(f"{route.name} v{route.version} of {pending.end - pending.start} bytes")
            return
        pending.run_alone()
        pending.task = asyncio.get_running_loop().create_task(_run_large(pending))
        return
    try:
        if route.raw:
            request: Any = memoryview(pending.data)[pending.start : pending.end]
        else:
            request = route.decode(pending.data, pending.start, pending.end)
        pending.data = b""
    except Exception as error:  # noqa: BLE001 - every request is answered, or closes
        _not_decoded(pending, error)
        return
    if not route.inline:
        run = _run_admitted if route.answers_large else _run_task
        pending.task = asyncio.get_running_loop().create_task(run(pending, request))
        return
    try:
        route.handler(pending, request)  # same as `_run_inline`, without the extra Python frame
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        pending.fail(request, error)


def _not_decoded(pending: PendingRequest, error: Exception) -> None:
    """Close: there is no request to make an answer for."""
    route = pending.route
    if isinstance(error, DecodeError):
        pending.close(f"malformed {route.name} v{route.version}: {error}")
    else:
        logger.error("request_not_decoded", api=route.name, version=route.version, exc_info=error)
        pending.close(f"{route.name} v{route.version} could not be decoded")


def _run_inline(pending: PendingRequest, request: Any, handler: Callable[..., Any]) -> None:
    route = pending.route
    try:
        handler(pending, request)
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        pending.fail(request, error)


async def _run_large(pending: PendingRequest) -> None:
    """Handle a large request once it is admitted, until it is answered or waits; later requests wait meanwhile."""
    size = pending.end - pending.start
    if pending.route.answers_large:
        size = max(size, LARGE_ANSWER_BYTES)
    admission = await pending.connection.server.large_requests.admit(size)
    try:
        if not pending.client_is_gone:
            await _handle_large(pending, admission)
    finally:
        admission.end()


async def _handle_large(pending: PendingRequest, admission: Admission) -> None:
    """Decode in a thread, and handle."""
    route, data = pending.route, pending.data
    pending.data = b""
    try:
        request = await DECODED.run(route.decode, data, pending.start, pending.end)
    except Exception as error:  # noqa: BLE001 - every request is answered, or closes
        _not_decoded(pending, error)
        return
    del data
    if route.waits:
        admission.end()
    if not route.inline:
        await _run_task(pending, request)
    elif not pending.client_is_gone:
        pending.task = None
        _run_inline(pending, request, route.large)
        if route.exclusive:  # it may wait long, as a small request may
            pending.let_later_start()
            return
        while (rest := pending.task) is not None:
            await asyncio.wait((rest,))


async def _run_admitted(pending: PendingRequest, request: Any) -> None:
    """Handle a request whose answer may be large, as a large request."""
    admission = await pending.connection.server.large_requests.admit(LARGE_ANSWER_BYTES)
    try:
        if not pending.client_is_gone:
            await _run_task(pending, request)
    finally:
        admission.end()


async def _run_task(pending: PendingRequest, request: Any) -> None:
    try:
        response = await pending.route.handler(pending, request)
        written = isinstance(response, bytes | list)
        if written:
            body = response
        elif pending.is_encoded_in_thread or pending.route.answers_large:
            body = await ENCODED.run(codec.encode, pending.api_key, pending.version, response)
        else:
            body = codec.encode(pending.api_key, pending.version, response)
        pending.reply(body)
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        await pending.fail_in_task(request, error)
    finally:
        pending.task = None
