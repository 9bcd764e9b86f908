"""Await what answers by a callback, and run many calls of which each may fail by itself.

What has no result has the KafkaError for the client: a value where callbacks pass it, raised where it is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import structlog

from tidegate.errors import KafkaError
from tidegate.store.foreign_entries import UNREADABLE
from tidegate.store.outcome import FaultyKeys

logger = structlog.get_logger()

Result = TypeVar("Result")
OnResult = Callable[[Result | KafkaError], None]

_AT_ONCE: Final = 1_000
_NAMED_MAX: Final = 10
"""Names in a log line; it counts the others."""


async def result_of(call: Callable[[OnResult[Result]], None]) -> Result:
    """The result that `call` passes to its callback. Raises the KafkaError that it passes instead."""
    future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    call(partial(_resolve, future))
    try:
        return await future
    finally:
        del future  # it has the error, whose traceback has this frame: a cycle


def _resolve(future: asyncio.Future[Result], result: Result | KafkaError) -> None:
    if future.done():
        return
    if isinstance(result, KafkaError):
        future.set_exception(result)
    else:
        future.set_result(result)


async def gather_each(calls: Iterable[Awaitable[Result]], at_once: int = _AT_ONCE) -> list[Result | KafkaError]:
    """The result or the KafkaError of each call, so many calls at a time. Raises any other exception of one."""
    remaining = iter(calls)
    results: list[Result | KafkaError] = []
    while part := list(islice(remaining, at_once)):
        for result in await asyncio.gather(*part, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, KafkaError):
                raise result
            results.append(result)
    return results


async def gather_readable(
    calls: Mapping[str, Awaitable[Result]], at_once: int = _AT_ONCE
) -> tuple[dict[str, Result], dict[str, FaultyKeys]]:
    """The results by name, and the errors of those with a key that cannot be read: they must not stop the others.

    Raises any other exception of one, such as StoreUnavailable while Redis is away, when all have ended.
    """
    results: dict[str, Result] = {}
    faulty: dict[str, FaultyKeys] = {}
    for name, result in zip(calls, await gather_each(calls.values(), at_once), strict=True):
        if isinstance(result, FaultyKeys):
            faulty[name] = result
        elif isinstance(result, KafkaError):
            raise result
        else:
            results[name] = result
    return results, faulty


async def parsed(read: Awaitable[Result]) -> Result:
    """What was read. Raises FaultyKeys for values that no broker wrote."""
    try:
        return await read
    except UNREADABLE as error:
        raise FaultyKeys(f"not as brokers write it: {error!r}") from error


def log_faulty(work: str, faulty: Mapping[str, FaultyKeys]) -> None:
    """Log what `work` left out, if anything; `store.wrong_types` names the keys."""
    if faulty:
        reason = str(next(iter(faulty.values())))
        logger.warning("faulty_left_out", work=work, count=len(faulty), names=[*faulty][:_NAMED_MAX], reason=reason)


def error_of(failure: BaseException, event: str) -> KafkaError:
    """The error for the client. Anything but a KafkaError is a bug: logged as `event`, UNKNOWN_SERVER_ERROR."""
    if isinstance(failure, KafkaError):
        return failure
    logger.error(event, exc_info=failure)
    return KafkaError()
