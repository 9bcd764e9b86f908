"""Subscriptions of many channels: after a reconnection every listener is called, with other work between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.rounds import counted_rounds
from tidegate.store.pubsub import PubSub

AT_ONCE = 200
COUNT = 900


class FakeLink:
    """Takes what is sent."""

    def __init__(self) -> None:
        self.on_up: list[Callable[[Any], None]] = []
        self.on_push: Any = None
        self.sent: list[Sequence[Any]] = []

    def send_unanswered(self, args: Sequence[Any]) -> None:
        self.sent.append(args)

    def reconnect(self) -> None:
        for listener in self.on_up:
            listener(self)


def subscribed(on_message: Callable[[str, bytes | None], None]) -> tuple[FakeLink, PubSub]:
    """A listener for each of many channels."""

    def listener(channel: str) -> Callable[[bytes | None], None]:
        return lambda payload: on_message(channel, payload)

    link: Any = FakeLink()
    pubsub = PubSub(link)
    for number in range(COUNT):
        pubsub.listen(f"c{number}", listener(f"c{number}"))
    link.sent.clear()
    return link, pubsub


async def until_calm() -> None:
    for _ in range(COUNT):
        await asyncio.sleep(0)


async def test_reconnection_calls_many_listeners_with_pauses() -> None:
    with counted_rounds() as rounds:
        link, _ = subscribed(rounds.note)
        link.reconnect()
        await until_calm()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE
    assert [len(args) for args in link.sent] == [1 + COUNT], "all are subscribed at once"


async def test_second_reconnection_calls_each_listener_again() -> None:
    called: list[str] = []
    link, _ = subscribed(lambda channel, payload: called.append(channel))

    link.reconnect()
    await asyncio.sleep(0)
    before = len(called)
    link.reconnect()
    await until_calm()

    assert before < COUNT
    assert set(called[before:]) == {f"c{number}" for number in range(COUNT)}
    assert len(called) == before + COUNT


async def test_channel_that_is_forgotten_meanwhile_is_not_called() -> None:
    called: list[str] = []

    def last(payload: bytes | None) -> None:
        called.append("last")

    link, pubsub = subscribed(lambda channel, payload: called.append(channel))
    pubsub.listen("last", last)

    link.reconnect()
    pubsub.forget("last", last)
    await until_calm()

    assert len(called) == COUNT and "last" not in called
