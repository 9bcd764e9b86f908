"""The high watermark of one partition's log: its end, or the offset up to which `durability` is proved.

The proved offset is stored with the log about once a second (`Progress`), after its proof. The stored value may
lag but never exceeds what was proved, also on a replica that is promoted. A broker that loads the log and obtains
no proof uses the stored value. Another broker may have served records up to the loaded end; until that end is proved,
ListOffsets `latest` answers OFFSET_NOT_AVAILABLE (KIP-207), because a high watermark must not move backwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.errors import OffsetNotAvailable

if TYPE_CHECKING:
    from tidegate.log.cached_log import CachedLog
    from tidegate.log.state import LogState


class HighWatermark:
    """The durability proofs of one partition's log, and the callers that wait for them."""

    __slots__ = ("_failed", "_log", "_mark_dirty", "_notify", "_proving", "_retry", "_waiting")

    def __init__(self, log: CachedLog, mark_dirty: Callable[[], None], notify: Callable[[], None]) -> None:
        self._log = log
        self._mark_dirty = mark_dirty
        self._notify = notify
        self._proving = False
        self._failed = False
        self._retry: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a proof, and a broker that loads the log has no lower high watermark."""
        state = self._log.state
        if self._proving or self._waiting:
            return False
        if state is None or self._log.durability.immediate:
            return True
        return state.high_watermark <= max(state.log_start, state.stored_high_watermark)

    def close(self) -> None:
        """Prove nothing any more."""
        if self._retry is not None:
            self._retry.cancel()

    async def load(self, state: LogState) -> None:
        """Set the high watermark of a state that was just read: its end if that is proved, else the stored one."""
        state.high_watermark = state.end
        if self._log.durability.immediate:
            return
        future: asyncio.Future[bool] = self._log.loop.create_future()
        self._log.durability.prove(
            self._log.lanes.node, lambda held: None if future.done() else future.set_result(held)
        )
        self._failed = not await future
        if self._failed:
            state.high_watermark = max(state.log_start, min(state.stored_high_watermark, state.end))
            state.unproved_end = state.end

    def installed(self, state: LogState) -> None:
        """The loaded state became the current one."""
        if state.high_watermark < state.end:
            self.prove()
        else:
            self._proved(state)

    def found(self, state: LogState) -> None:
        """The end moved past entries of other brokers, which may have served them already."""
        if self._log.durability.immediate:
            state.high_watermark = state.end
        else:
            state.unproved_end = state.end
            self.prove()

    def when_durable(self, end: int, acks_all: bool, on_proved: Callable[[bool], None]) -> None:
        """Call once the log is durable up to `end`, or with False if the proof failed.

        A proof is discarded once the cached state is void: another server may have given it.
        """
        state = self._log.state
        if self._log.durability.immediate or not acks_all:
            on_proved(True)
        elif state is None:
            on_proved(False)
        elif state.high_watermark >= end:
            on_proved(True)
        else:
            self._waiting.append((self._log.voids, on_proved))
            self.prove()

    async def until_known(self, state: LogState) -> None:
        """Wait for the running proof. Raises OffsetNotAvailable if it, or the one before it, failed."""
        if self._failed:
            raise OffsetNotAvailable()
        future: asyncio.Future[bool] = self._log.loop.create_future()
        self.when_durable(state.unproved_end, True, lambda proved: None if future.done() else future.set_result(proved))
        if not await future:
            raise OffsetNotAvailable()

    def prove(self) -> None:
        """Prove everything up to the end; repeat while the end has moved."""
        log = self._log
        state, voids = log.state, log.voids
        if self._proving or (state is None and not self._waiting):
            return
        self._proving = True
        end = state.end if state is not None else -1
        asked, self._waiting = self._waiting, []

        def answered(held: bool) -> None:
            self._proving = False
            held = held and log.voids == voids
            self._failed = not held
            if held and state is not None and end > state.high_watermark:
                state.high_watermark = end
                self._proved(state)
                self._notify()
            for asked_voids, on_proved in asked:
                log.guarded(on_proved, held and asked_voids == voids)
            if self._waiting or (log.state is not None and log.state.high_watermark < log.state.end):
                if held:
                    self.prove()
                else:
                    self._retry = log.loop.call_later(log.poll_s, self.prove)

        log.durability.prove(log.lanes.node, answered)

    def _proved(self, state: LogState) -> None:
        """The next `Progress` write stores it."""
        if not self._log.durability.immediate and state.high_watermark > state.stored_high_watermark:
            self._mark_dirty()
