"""Refresh: bring a partition's cached state to the end of its log. One read serves all refreshes of a tick.

A read begins after the refreshes that it serves were requested. A reply with fewer entries than requested proves the
end; otherwise the entries are applied and the read is repeated. The same read returns the log start, the local
start and whether the partition still exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.log.entries import parse_entries
from tidegate.log.loading import page_entries
from tidegate.store.batching import Coalescer
from tidegate.store.key_lanes import MOVING_PAUSE_S
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Moved, Refused

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.state import LogState

OnRefreshed = Callable[[KafkaError | None], None]
"""Called with None if the state was verified after the call, else with the failure."""

_TRIES: Final = 5


class LogRefresher:
    """The refreshes of one partition."""

    __slots__ = ("_calls", "_log", "_tries", "_until")

    def __init__(self, log: CachedLog) -> None:
        self._log = log
        self._calls: Coalescer[KafkaError | None] = Coalescer(self._begin, log.guarded)
        self._tries = 0
        self._until = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no refresh is under way."""
        return self._calls.is_idle

    def refresh(self, on_refreshed: OnRefreshed) -> None:
        """Verify the state, then call. Never calls before it returns."""
        self._calls.add(on_refreshed)

    def close(self) -> None:
        """Refresh no more: what combines the calls refers to this."""
        del self._calls

    def _begin(self) -> None:
        self._tries = 0
        self._until = self._log.loop.time() + self._log.patience_s
        self._send()

    def _send(self) -> None:
        state = self._log.state
        if state is None:
            self._log.with_state(self._loaded)
            return
        log, count = self._log, page_entries(state.mean_entry_bytes)
        items: list[Arg] = ["XRANGE", log.keys.log, f"{state.end}-0", "+", "COUNT", count]
        meta: list[Arg] = ["HMGET", log.keys.meta, "state", "log_start", "local_start", "log_version"]

        def answered(replies: list[Any], failure: Failure | None) -> None:
            if failure is None:
                self._answered(state, count, *replies)
            else:
                self._failed(failure)

        log.lanes.read_all([items, meta], answered)

    def _loaded(self, loaded: LogState | KafkaError) -> None:
        if isinstance(loaded, KafkaError):
            self._calls.finish(loaded)
        else:  # the load may have begun before this refresh
            self._again()

    def _failed(self, failure: Failure) -> None:
        match failure:
            case Moved():
                self._log.void(failure.text)
                self._later(failure.error)
            case Refused():
                self._log.void(failure.text)
                self._calls.finish(failure.error)
            case _:
                self._again()

    def _answered(self, state: LogState, count: int, items: Any, meta: Any) -> None:
        if self._log.state is not state:
            self._again()
            return
        if meta[0] is None:
            self._log.void("its meta is lost, or the topic was deleted long ago")  # loading finds out
            self._again()
            return
        if meta[0] != b"ready":
            self._calls.finish(self._log.gone())
            return
        if int(meta[3] or 0) != state.log_version:
            self._log.void("the stream is another one")  # its log start may be lower
            self._again()
            return
        entries, strays = parse_entries(items)
        entries = [entry for entry in entries if entry.base >= state.end]
        if entries and entries[0].base != state.end:
            self._log.void("the log continues above the cached state")  # trimmed meanwhile; a newer snapshot exists
            self._again()
            return
        self._log.found(state, entries, int(meta[1]), int(meta[2] or 0))
        stray = next((stray for stray in strays if stray.stops(state.end)), None)
        if stray is not None:
            self._log.found_stray(state, stray)
        elif state.stray is not None and not state.stray.removed:
            self._log.void("what stood behind the log was removed")
            self._again()
            return
        if len(items) < count or not entries:
            state.verified_at = asyncio.get_running_loop().time()
            self._calls.finish(None)
        else:
            self._send()

    def _again(self) -> None:
        self._tries += 1
        if self._tries > _TRIES:
            self._calls.finish(StoreUnavailable("the log could not be read"))
        else:
            self._send()

    def _later(self, failure: StoreUnavailable) -> None:
        """Send again after a pause: the log's slot is migrating."""
        loop = self._log.loop
        if loop.time() > self._until:
            self._calls.finish(failure)
        else:
            loop.call_later(MOVING_PAUSE_S, self._send)
