"""Lag of every group, sampled every `lag_sample_interval_ms` into `{cluster}:lag` by one broker at a time.

An entry is one group's sample: `time`; `group`, `<org>/<group>` as in its shard's keys; then for each committed
partition the field `<topic>:<partition>` with a text from `sample_text`. Groups without commits have none. A group that
rests (`resting_groups.py`) is sampled every few minutes. The round is spread over the interval, a few groups at a time.
The same round produces the cluster metrics on `/metrics` (`cluster_metrics.py`), so that nothing is read twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidegate.errors import KafkaError
from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.group_index import decode_name, group_of
from tidegate.groups.offsets import offset_field
from tidegate.monitoring.lag_reading import (
    SLICE,
    UNREADABLE_GROUPS,
    UNREADABLE_SHARDS,
    FindTopic,
    GroupRead,
    LagReader,
    LogEndsReading,
    LogEndsReadings,
    Place,
)
from tidegate.monitoring.resting_groups import RestingGroup, RestingGroups
from tidegate.monitoring.singleton_lease import SingletonLease
from tidegate.settings import Settings
from tidegate.store.calls import gather_readable, parsed
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import FaultyKeys
from tidegate.store.samples import add_samples
from tidegate.store.slices import Pauses
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks

HANDOVER_MS: Final = 15_000
"""Time without cluster metrics when another broker takes over exporting them: a usual scrape interval, so that no
scrape finds a series at two brokers."""
SAMPLES_MAX: Final = 50_000
"""Limit of stored lag samples, over all groups."""
_GROUPS_AT_ONCE: Final = 20
_RESTING_AT_ONCE: Final = 50
_PARTITIONS_PER_ENTRY_MAX: Final = 500
_ASKED_PER_LEASE: Final = 4
"""Lease attempts per lease duration (one interval); bounds the time until another broker takes over."""
_BUSY: Final = 0.8
"""Share of an interval over which a round is spread."""
_RELEASE_S: Final = 1.0


class Reader(Protocol):
    """Another consumer of a round's readings."""

    def begin(self, groups: list[str], now_ms: int) -> None:
        """Start a round over these groups (their names in the shards' keys)."""

    async def group(self, group: GroupRead, owners: Mapping[Place, str], log_ends: LogEndsReadings) -> None:
        """Add a group, the owners of its partitions, and the log ends of the partitions that it has committed."""

    async def end(self, reader: LagReader) -> None:
        """Complete the round. Raises StoreUnavailable."""


def sample_text(committed: int, committed_at: int, status: LogEndsReading, lag: int, member_id: str) -> str:
    """The stored text of a partition; the member id comes last, because it may contain any character."""
    return (
        f"committed={committed} start={status.log_start} end={status.log_end} lag={lag} "
        f"committed_at={committed_at} next_time={status.times[committed]} head_time={status.head_time} "
        f"member={member_id}"
    )


class LagSampler:
    """Takes samples while this broker holds the singleton lease."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        find_topic: FindTopic,
        partitions_of: Callable[[bytes], Mapping[str, list[int]] | None],
        broker: Callable[[], str],
        reported: Reader | None = None,
        *,
        handover_ms: int,
    ) -> None:
        self.taken = 0
        self.round_s = 0.0
        self._store, self._reported = store, reported
        self._interval_ms, self._samples_max = settings.lag_sample_interval_ms, SAMPLES_MAX
        self._reader = LagReader(store, find_topic, partitions_of, self._interval_ms)
        self._resting = RestingGroups(find_topic, self._interval_ms)
        self._pauses = Pauses(SLICE)
        self._follows_changes = False
        self.singleton_lease = SingletonLease(
            store, store.cluster_keys.lag_sampler, broker, self._interval_ms, handover_ms
        )
        self._first_places: dict[str, Place] = {}
        self._clock = asyncio.get_running_loop().time
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Start to sample, or to wait for the lease."""
        if self._interval_ms:
            self._loops.run("lag-samples", self._run)

    async def close(self) -> None:
        """Stop, and release the lease."""
        await self._loops.close()
        self._forget()
        if self._store.available:
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_RELEASE_S):
                    await self.singleton_lease.release()

    def notes_lost(self) -> None:
        """A broker ended, perhaps before it noted its last changes: the next round reads everything."""
        self._reader.notes_lost = True
        self._resting.on_group_change(None)

    async def _run(self) -> None:
        clock, interval_s = self._clock, self._interval_ms / 1000
        while True:
            due_s = clock() + interval_s
            holds_lease = await self.sample()
            while True:
                await asyncio.sleep(interval_s / _ASKED_PER_LEASE)
                if not holds_lease or not await self.singleton_lease.renew() or clock() >= due_s:
                    break

    async def sample(self) -> bool:
        """Run one round over all groups if this broker holds the lease; returns whether it held it to the end.

        Raises StoreUnavailable, TimeoutError.
        """
        began_s, self.round_s = self._clock(), 0.0
        if not await self.singleton_lease.renew():
            self._forget()
            return False
        try:
            return await self._sample_all(began_s)
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Read everything again in the next round: another broker may take the notes of changes."""
        self._reader.forget()
        self._resting.forget()
        self._first_places.clear()
        if self._follows_changes:
            self._follows_changes = False
            unsubscribe_group_changes(self._store, self._resting.on_group_change)

    async def _sample_all(self, began_s: float) -> bool:
        """One round; False if the lease was lost meanwhile. Raises StoreUnavailable, TimeoutError."""
        if not self._follows_changes:
            self._follows_changes = True
            await subscribe_group_changes(self._store, self._resting.on_group_change)
        await self._resting.begin_round(*await self._reader.begin_round(self.singleton_lease.now_ms))
        groups, faulty = await self._groups()
        self._reader.leave_out(UNREADABLE_SHARDS, faulty)
        if self._reported is not None:
            self._reported.begin(groups, self.singleton_lease.now_ms)
        resting = [one for ref in groups if (one := self._resting.get(ref)) is not None]
        await self._report_resting(began_s, resting, len(groups))
        due = [ref for ref in groups if self._resting.get(ref) is None]
        for start in range(0, len(due), _GROUPS_AT_ONCE):
            await self._until(began_s, len(resting) + start, len(groups))
            if start + len(resting) and not await self.singleton_lease.renew():
                self._forget()
                return False
            await self._sample_some([group_of(self._store, ref) for ref in due[start : start + _GROUPS_AT_ONCE]])
        if self._reported is not None:
            await self._reported.end(self._reader)
        self._reader.log_unreadable()
        self.round_s = self._clock() - began_s
        return True

    async def _until(self, began_s: float, done: int, count: int) -> None:
        """Spread a round over the interval."""
        due_s = began_s + _BUSY * self._interval_ms / 1000 * done / count
        await asyncio.sleep(max(due_s - self._clock(), 0))

    async def _groups(self) -> tuple[list[str], dict[str, FaultyKeys]]:
        """All groups, ordered so that groups of one log are adjacent and share its read; and keys of unread shards."""
        indices = [self._store.shard_keys(shard).groups for shard in range(self._store.settings.coordinator_shards)]
        listed, faulty = await gather_readable({key: self._store.command("HKEYS", key) for key in indices})
        groups = [decode_name(name) for names in listed.values() for name in names]
        self._reader.retain_groups(groups)
        self._first_places = {ref: self._first_places[ref] for ref in groups if ref in self._first_places}
        return sorted(groups, key=lambda ref: (self._first_places.get(ref, ("", 0)), ref)), faulty

    async def _report_resting(self, began_s: float, resting: list[RestingGroup], count: int) -> None:
        """Groups that are as they were last read: they cost Redis nothing."""
        if self._reported is None:
            return
        now_ms = self.singleton_lease.now_ms
        for start in range(0, len(resting), _RESTING_AT_ONCE):
            await self._until(began_s, start, count)
            for one in resting[start : start + _RESTING_AT_ONCE]:
                await self._reported.group(one.group, one.owners, await one.log_ends(now_ms))
                await self._pauses.after(1 + len(one.group.commits))

    async def _sample_some(self, some: list[GroupKeys]) -> None:
        """Read commits before log ends, so that no committed offset exceeds the reported end.

        A group that cannot be read is left out.
        """
        read, faulty = await gather_readable({keys.ref: parsed(self._reader.group(keys)) for keys in some})
        groups = {ref: group for ref, group in read.items() if group is not None}
        self._first_places |= {ref: min(group.commits) for ref, group in groups.items() if group.commits}
        log_ends = await self._reader.read_log_ends(groups.values())
        owners, without = await gather_readable(
            {ref: parsed(self._reader.owners(group)) for ref, group in groups.items()}
        )
        self._reader.leave_out(UNREADABLE_GROUPS, faulty | without)
        entries: list[list[Arg]] = []
        for ref, owned in owners.items():
            group = groups[ref]
            entries += await _entries(group, owned, log_ends)
            await self._resting.add(group, owned, log_ends)
            if self._reported is not None:
                await self._reported.group(group, owned, log_ends)
            await self._pauses.after(1 + len(group.commits))
        lag = self._store.cluster_keys.lag
        await add_samples(self._store, lag, self._samples_max, entries)
        self.taken += len(entries)


async def _entries(group: GroupRead, owned: Mapping[Place, str], log_ends: LogEndsReadings) -> list[list[Arg]]:
    fields: list[Arg] = []
    for number, (place, (offset, committed_at)) in enumerate(group.commits.items(), 1):
        if not number % SLICE:
            await asyncio.sleep(0)  # other work goes on
        status = log_ends.get((group.name.org, place))
        if status is not None:
            lag, owner = group.lag(place, status), owned.get(place, "")
            fields += (offset_field(*place), sample_text(offset, committed_at, status, lag, owner))
    size = 2 * _PARTITIONS_PER_ENTRY_MAX
    return [["group", group.name.ref, *fields[at : at + size]] for at in range(0, len(fields), size)]
