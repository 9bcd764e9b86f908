"""Which waiting fetches of share groups read again when records may have become available.

A thousand members may wait for one share-partition, and a released record is for one of them. So a change wakes one
waiting fetch for each partition that changed. A fetch that finds records wakes two others, for there may be more; one
that finds nothing wakes nobody. A fetch whose notification is lost reads when its client asks next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.groups.share.sessions import SharePartition
from tidegate.store.keys import GroupKeys
from tidegate.store.pubsub import PubSub

_WOKEN_BY_FOUND: Final = 2


class Log(Protocol):
    """The log of a partition, as far as its growth is followed."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener after appends; returns what ends that."""


class WaitingFetch(Protocol):
    """A fetch that waits for records of `partitions`."""

    @property
    def partitions(self) -> frozenset[SharePartition]: ...

    def resume(self) -> None:
        """Read again, then call `GroupWakeups.done`."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A log whose changes the group follows, for `count` fetches."""

    log: Log
    stop: Callable[[], None]
    count: int = 0


Listening = tuple[int, list[_Followed]]
"""What a group followed at one time, and how many changes had been reported to it."""


class GroupWakeups:
    """The waiting fetches of one group at this broker, in the order of their arrival."""

    def __init__(self, keys: GroupKeys, pubsub: PubSub) -> None:
        self._keys, self._pubsub = keys, pubsub
        self._waiting: dict[WaitingFetch, dict[SharePartition, _Followed]] = {}
        self._reading: set[WaitingFetch] = set()
        self._followed: dict[SharePartition, _Followed] = {}
        self._changed: set[SharePartition] = set()
        """Partitions with a change that no fetch has read yet."""
        self._change_count = 0
        self._unlocks_at_s: dict[SharePartition, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._subscribed = pubsub.listen(keys.shard_keys.available, self._on_available)

    @property
    def is_empty(self) -> bool:
        """Whether no fetch waits."""
        return not self._waiting

    def listening(self, partitions: Iterable[SharePartition]) -> Listening | None:
        """An equal value later means that these partitions did not change in between. None if not all are followed."""
        try:
            followed = [self._followed[partition] for partition in partitions]
        except KeyError:
            return None
        return (self._change_count, followed) if self._subscribed.done() else None

    def join(self, fetch: WaitingFetch, logs: Mapping[SharePartition, Log]) -> None:
        """The fetch waits, and the logs are followed."""
        self._waiting[fetch] = {partition: self._follow(partition, log) for partition, log in logs.items()}

    def leave(self, fetch: WaitingFetch) -> None:
        """The fetch waits no more; if it did not read what it was woken for, another one does."""
        followed = self._waiting.pop(fetch, {})
        for partition, one in followed.items():
            one.count -= 1
            if not one.count:
                one.stop()
                if self._followed.get(partition) is one:
                    del self._followed[partition]
        if fetch in self._reading:
            self._reading.discard(fetch)
            self._change(followed)

    def close(self) -> None:
        """Follow nothing any more."""
        self._pubsub.forget(self._keys.shard_keys.available, self._on_available)
        if self._timer is not None:
            self._timer.cancel()

    def done(self, fetch: WaitingFetch, *, found: bool, unlocks_in_ms: int) -> None:
        """A fetch has read; the first lock of its partitions expires in `unlocks_in_ms`, -1 for none."""
        self._note_unlock(fetch.partitions, unlocks_in_ms)
        if fetch not in self._reading:
            return
        self._reading.discard(fetch)
        for _ in range(_WOKEN_BY_FOUND if found else 0):
            self._changed.update(fetch.partitions)
            self._wake()
        self._wake()

    # -- changes

    def _follow(self, partition: SharePartition, log: Log) -> _Followed:
        one = self._followed.get(partition)
        if one is None or one.log is not log:
            one = self._followed[partition] = _Followed(log, log.on_change(lambda: self._change((partition,))))
        one.count += 1
        return one

    def _on_available(self, payload: bytes | None) -> None:
        if payload is None or payload.decode() == self._keys.ref:
            self._change(self._followed)

    def _change(self, partitions: Iterable[SharePartition]) -> None:
        self._change_count += 1
        self._changed.update(partitions)
        self._wake()

    def _wake(self) -> None:
        """Resume one fetch for each changed partition that has a fetch which is not reading."""
        for fetch in self._waiting:
            if not self._changed:
                return
            if fetch not in self._reading and not self._changed.isdisjoint(fetch.partitions):
                self._changed.difference_update(fetch.partitions)
                self._reading.add(fetch)
                fetch.resume()

    # -- locks

    def _note_unlock(self, partitions: Iterable[SharePartition], unlocks_in_ms: int) -> None:
        now_s = asyncio.get_running_loop().time()
        for partition in partitions:
            if unlocks_in_ms < 0:
                self._unlocks_at_s.pop(partition, None)
            else:
                self._unlocks_at_s[partition] = now_s + (unlocks_in_ms + 1) / 1000
        self._set_timer()

    def _set_timer(self) -> None:
        at_s = min(self._unlocks_at_s.values(), default=None)
        if self._timer is not None:
            if at_s is not None and self._timer_at_s <= at_s:
                return  # an early look finds nothing, and notes the next one
            self._timer.cancel()
        self._timer = None
        if at_s is not None:  # the time is noted here: uvloop's handle of a time in the past does not know it
            self._timer, self._timer_at_s = asyncio.get_running_loop().call_at(at_s, self._unlock), at_s

    def _unlock(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        due = [partition for partition, at_s in self._unlocks_at_s.items() if at_s <= now_s]
        for partition in due:
            del self._unlocks_at_s[partition]
        self._set_timer()
        if due:
            self._change(due)


class ShareWakeups:
    """The waiting fetches of all share groups at this broker."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub
        self._groups: dict[str, GroupWakeups] = {}

    def find(self, keys: GroupKeys) -> GroupWakeups | None:
        """The group's, if a fetch of it waits."""
        return self._groups.get(keys.ref)

    def join(self, keys: GroupKeys, fetch: WaitingFetch, logs: Mapping[SharePartition, Log]) -> GroupWakeups:
        """A fetch of the group waits, until `leave`."""
        group = self._groups.get(keys.ref)
        if group is None:
            group = self._groups[keys.ref] = GroupWakeups(keys, self._pubsub)
        group.join(fetch, logs)
        return group

    def leave(self, keys: GroupKeys, fetch: WaitingFetch) -> None:
        """The fetch waits no more."""
        group = self._groups.get(keys.ref)
        if group is None:
            return
        group.leave(fetch)
        if group.is_empty:
            group.close()
            del self._groups[keys.ref]
