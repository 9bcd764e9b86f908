"""Appends to topics of format record that Redis refuses, or that fail half way: on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.scripts.test_record_log import KEY, entries, log_of, produce
from tests.support.logs import batch_bytes
from tests.support.whole_broker import WholeBroker
from tidegate.errors import RequestTimedOut, StoreUnavailable
from tidegate.log.outgoing import Appended
from tidegate.log.record_format.record_log import RecordLog
from tidegate.records.batch import Batch
from tidegate.settings import Settings
from tidegate.store.outcome import FaultyKeys, StoreRefused
from tidegate.store.store import Store


@pytest.fixture
async def broker(store: Store, settings: Settings) -> AsyncIterator[WholeBroker]:
    one = await WholeBroker(settings, 1).start()
    await one.create("r", 1, tidegate_format="record")
    yield one
    await one.close()


def append_in_one_call(log: RecordLog, *batches: bytes) -> list[asyncio.Future[Any]]:
    """The outcomes of batches that one script gets."""
    outcomes: list[asyncio.Future[Any]] = [log.loop.create_future() for _ in batches]
    for one, outcome in zip(batches, outcomes, strict=True):
        log.append(Batch.parse(memoryview(one)), outcome.set_result)
    return outcomes


async def values(store: Store) -> list[bytes]:
    return [fields[b"value"] for _, fields in await entries(store)]


@pytest.mark.parametrize("damaged", ["producers", "writers", "records"])
async def test_append_beside_a_damaged_key_stores_no_batch(broker: WholeBroker, store: Store, damaged: str) -> None:
    """The second batch's producer cannot be read: found before the first batch is stored."""
    log = log_of(broker)
    key = KEY if damaged == "records" else getattr(log.keys, damaged)
    await store.command("DEL", key)
    await store.command("SET", key, "foreign")

    sent = append_in_one_call(log, batch_bytes(value=b"first"), batch_bytes(1, 7, 0, 0))
    refused = [await one for one in sent]
    await store.command("DEL", key)
    later = await produce(broker.client(), batch_bytes(1, 7, 0, 0, value=b"later"))

    assert [type(one) for one in refused] == [FaultyKeys] * 2
    assert later.error_code == 0
    assert await values(store) == [b"later"]


@pytest.mark.parametrize(("command", "outcome"), [("publish", Appended), ("hset", RequestTimedOut)])
async def test_append_that_fails_after_its_records_stores_them_once(
    broker: WholeBroker, store: Store, command: str, outcome: type
) -> None:
    """What a script wrote before it failed stays, so it is not sent again; without a wake-up nothing fails."""
    await store.command("ACL", "SETUSER", "default", f"-{command}")
    try:
        [sent] = append_in_one_call(log_of(broker), batch_bytes(value=b"once"))
        found = await sent
    finally:
        await store.command("ACL", "SETUSER", "default", f"+{command}")

    assert isinstance(found, outcome)
    assert await values(store) == [b"once"]


FAILURES = {
    "no reply": StoreUnavailable("the connection was lost"),
    "refused": StoreRefused("OOM command not allowed when used memory > 'maxmemory'."),
    "failed": StoreRefused("ERR ACL failure in script: no permissions script: 0a1b, on @user_script:1."),
}


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        (["no reply", "no reply"], Appended),
        (["refused"], StoreRefused),
        (["failed"], RequestTimedOut),
        (["no reply", "refused"], RequestTimedOut),
    ],
    ids=lambda one: ", ".join(one) if isinstance(one, list) else None,
)
async def test_append_is_sent_again_without_a_reply_only(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch, replies: list[str], outcome: type
) -> None:
    sent: list[Any] = []
    run_on, failures = RecordLog.run_on, [FAILURES[one] for one in replies]

    async def fail(*args: Any) -> Any:
        sent.append(args)
        if failures:
            raise failures.pop(0)
        return await run_on(*args)

    monkeypatch.setattr(RecordLog, "run_on", fail)
    [answer] = append_in_one_call(log_of(broker), batch_bytes())
    found = await answer

    assert type(found) is outcome
    assert len(sent) == len(replies) + isinstance(found, Appended)
    assert all(args == sent[0] for args in sent)


async def test_append_removes_damaged_rows_of_writers(broker: WholeBroker, store: Store) -> None:
    """The rows of 64 writers remain: one that cannot be read is as an old one."""
    writers = log_of(broker).keys.writers
    await store.command("HSET", writers, *(text for i in range(70) for text in (f"writer {i}", "damaged")))

    answer = await produce(broker.client(), batch_bytes())

    assert answer.error_code == 0
    assert await store.command("HLEN", writers) == 1
