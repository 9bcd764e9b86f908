"""Deliver pub/sub messages to local listeners. A message only triggers a read; it carries no authoritative data.

A lost message delays a waiter by its poll interval at most. Channels are subscribed on first use, and again after
each reconnection; every listener is then called once, soon, because messages may have been lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from tidegate.store.link import Link

logger = structlog.get_logger()

OnMessage = Callable[[bytes | None], None]
"""Called with a message's payload, or None if messages may have been lost."""

_AT_ONCE: Final = 200
"""Channels whose listeners are called after a reconnection before the event loop runs other work: each may read."""


class PubSub:
    """The subscriptions of one broker over one push link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listeners: dict[bytes, dict[OnMessage, None]] = {}
        self._acks: dict[bytes, asyncio.Future[None]] = {}
        self._missed: list[bytes] = []
        """Channels whose listeners are still to be called after a reconnection."""
        link.on_up.append(self._resubscribe)
        link.on_push = self._deliver

    def listen(self, channel: str, listener: OnMessage) -> asyncio.Future[None]:
        """Add a listener. The future is done when Redis has confirmed the subscription."""
        name = channel.encode()
        listeners = self._listeners.get(name)
        if listeners is None:
            listeners = self._listeners[name] = {}
            self._acks[name] = asyncio.get_running_loop().create_future()
            self._subscribe([name])
        listeners[listener] = None
        return self._acks[name]

    def forget(self, channel: str, listener: OnMessage) -> None:
        """Remove a listener; removing the last one unsubscribes the channel."""
        name = channel.encode()
        listeners = self._listeners.get(name)
        if listeners is None:
            return
        listeners.pop(listener, None)
        if not listeners:
            del self._listeners[name]
            ack = self._acks.pop(name, None)
            if ack is not None and not ack.done():
                ack.cancel()
            self._link.send_unanswered(["UNSUBSCRIBE", name])

    def _deliver(self, message: list[Any]) -> None:
        """Deliver one RESP3 push."""
        kind = message[0]
        if kind == b"message":
            self._notify(message[1], message[2])
        elif kind == b"subscribe":
            ack = self._acks.get(message[1])
            if ack is not None and not ack.done():
                ack.set_result(None)

    def _resubscribe(self, _: Link) -> None:
        if self._listeners:
            self._subscribe(list(self._listeners))
            is_under_way, self._missed = bool(self._missed), list(self._listeners)
            if not is_under_way:
                self._notify_missed()

    def _notify_missed(self) -> None:
        names, self._missed = self._missed[:_AT_ONCE], self._missed[_AT_ONCE:]
        if self._missed:
            asyncio.get_running_loop().call_soon(self._notify_missed)
        for name in names:
            self._notify(name, None)

    def _notify(self, name: bytes, payload: bytes | None) -> None:
        """Call the listeners; an exception of one (or a foreign payload) does not affect the others."""
        for listener in list(self._listeners.get(name, ())):
            try:
                listener(payload)
            except Exception:
                logger.exception("pubsub_listener_failed", channel=name.decode())

    def _subscribe(self, names: list[bytes]) -> None:
        self._link.send_unanswered(["SUBSCRIBE", *names])
