"""Awaiting callbacks, and many calls of which each may fail by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tidegate.errors import KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.store.calls import OnResult, error_of, gather_each, gather_readable, log_faulty, result_of
from tidegate.store.outcome import FaultyKeys


async def test_result_of_returns_what_the_callback_gets_once() -> None:
    def call(on_result: OnResult[int]) -> None:
        on_result(7)
        on_result(8)

    assert await result_of(call) == 7


async def test_result_of_raises_the_error_that_arrives_later() -> None:
    def call(on_result: OnResult[int]) -> None:
        asyncio.get_running_loop().call_soon(on_result, UnknownTopicOrPartition("gone"))

    with pytest.raises(UnknownTopicOrPartition, match="gone"):
        await result_of(call)


async def test_result_of_cancelled_ignores_the_result() -> None:
    callbacks: list[OnResult[int]] = []
    waiting = asyncio.ensure_future(result_of(callbacks.append))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    callbacks[0](7)


async def test_gather_each_has_results_and_errors_in_order_and_bounds_what_runs() -> None:
    running = longest = 0

    async def call(number: int) -> int:
        nonlocal running, longest
        running += 1
        longest = max(longest, running)
        await asyncio.sleep(0)
        running -= 1
        if number == 2:
            raise StoreUnavailable("away")
        return number

    results = await gather_each((call(number) for number in range(5)), at_once=2)

    assert [str(one) for one in results] == ["0", "1", "away", "3", "4"]
    assert isinstance(results[2], StoreUnavailable)
    assert longest == 2


async def test_gather_each_raises_what_is_no_kafka_error() -> None:
    async def call() -> int:
        raise ValueError("a bug")

    calls: list[Awaitable[int]] = [call()]
    with pytest.raises(ValueError, match="a bug"):
        await gather_each(calls)


async def gives(result: int | Exception) -> int:
    if isinstance(result, Exception):
        raise result
    return result


async def test_gather_readable_leaves_out_faulty_keys_and_logs_them(capsys: pytest.CaptureFixture[str]) -> None:
    results, faulty = await gather_readable({"a": gives(1), "b": gives(FaultyKeys("WRONGTYPE")), "c": gives(3)})

    assert results == {"a": 1, "c": 3}
    assert [*faulty] == ["b"]
    log_faulty("a-sweep", faulty)
    assert "faulty_left_out" in capsys.readouterr().out


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a bug")])
async def test_gather_readable_raises_what_is_not_about_a_key(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        await gather_readable({"a": gives(FaultyKeys("WRONGTYPE")), "b": gives(error)})


def test_error_of_bug_is_logged_and_has_no_text_for_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    refused = UnknownTopicOrPartition()
    assert error_of(refused, "failed") is refused

    found = error_of(RuntimeError("a fault"), "read_failed")

    assert (type(found), found.message) == (KafkaError, None)
    assert "read_failed" in capsys.readouterr().out
