"""Notifications of other brokers' appends: a pub/sub message after each XADD, and a poll that covers lost messages.

A message only triggers a refresh. The subscription lasts while the partition has listeners and `LINGER_S` longer.
While subscribed, the cached state lags by at most one lost message, and the poll bounds that lag (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.errors import KafkaError

if TYPE_CHECKING:
    import asyncio

    from tidegate.log.cached_log import CachedLog
    from tidegate.log.log_refresh import LogRefresher

Listener = Callable[[], None]
LINGER_S: Final = 5.0


class AppendSubscription:
    """The listeners of one partition on this broker, and its pub/sub subscription."""

    __slots__ = (
        "_confirmed", "_idle_since", "_listeners", "_log", "_next_id", "_on_subscription", "_refresher", "_subscribed",
    )  # fmt: skip

    def __init__(self, log: CachedLog, refresher: LogRefresher, on_subscription: Callable[[bool], None]) -> None:
        self._log = log
        self._refresher = refresher
        self._on_subscription = on_subscription
        self._listeners: dict[int, Listener] = {}
        self._next_id = 0
        self._subscribed = False
        self._confirmed = False
        self._idle_since = 0.0

    @property
    def is_subscribed(self) -> bool:
        """Whether appends by other brokers are being notified, so the cached log end may be used without a refresh."""
        return self._confirmed and self._log.store.push.connected

    @property
    def is_idle(self) -> bool:
        """Whether there is no subscription, and so no listener."""
        return not (self._subscribed or self._listeners)

    @property
    def wanted(self) -> bool:
        """Whether the partition has a listener."""
        return bool(self._listeners)

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` at every append, trim or deletion, from any broker, until the returned remover is called."""
        listener_id = self._next_id = self._next_id + 1
        self._listeners[listener_id] = listener
        if not self._subscribed and not self._log.closed:
            self._subscribe()

        def remove() -> None:
            if self._listeners.pop(listener_id, None) is not None and not self._listeners:
                self._idle_since = self._log.loop.time()

        return remove

    def notify(self) -> None:
        """Call every listener."""
        for listener in list(self._listeners.values()):
            self._log.guarded(listener)

    def sweep(self, now_s: float) -> None:
        """Unsubscribe if there was no listener for `LINGER_S`."""
        if self._subscribed and not self._listeners and now_s - self._idle_since > LINGER_S:
            self.stop()

    def stop(self) -> None:
        """Unsubscribe now."""
        if self._subscribed:
            self._subscribed = self._confirmed = False
            self._log.store.pubsub.forget(self._log.keys.wake, self._message)
            self._on_subscription(False)

    def _subscribe(self) -> None:
        self._subscribed = True
        self._on_subscription(True)
        self._log.store.pubsub.listen(self._log.keys.wake, self._message).add_done_callback(self._on_subscribed)

    def _on_subscribed(self, ack: asyncio.Future[None]) -> None:
        if self._subscribed and not ack.cancelled() and ack.exception() is None:
            self._refresher.refresh(self._on_refreshed)  # earlier appends were not notified

    def _on_refreshed(self, failure: KafkaError | None) -> None:
        self._confirmed = self._subscribed and failure is None

    def _message(self, payload: bytes | None) -> None:
        if payload is not None:
            end, _, writer = payload.partition(b":")
            if writer == self._log.writer.name:
                return
            state = self._log.state
            if state is not None and end.isdigit() and int(end) <= state.end:
                return
        self._refresher.refresh(_ignore)


def _ignore(_: KafkaError | None) -> None:
    """The refresh itself applied the entries and notified the listeners."""
