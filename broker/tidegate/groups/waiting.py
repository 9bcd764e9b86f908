"""Requests that wait for a group: parked joins and syncs. Subscribe, read, wait, read again.

Each group with waiting requests has one entry here and one task, whatever their number. The task refreshes the group at
a notification, at the group's next deadline, and every `POLL_MS`, which bounds the delay after a lost notification. One
refresh serves all waiting requests. It expires what is overdue, so no broker owns a timer; and the task renews the
lease by which a parked request holds its member's session.

A cancelled waiter (its client disconnected) leaves only its member in the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import structlog

from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.groups.commits import WITHOUT_LEASE, lease_end_ms
from tidegate.groups.expire_and_retry import (
    BrokerName,
    extend_sessions_after_outage,
    group_script_args,
    group_script_keys,
    nobody,
)
from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.join_sync_batch import RequestBatcher
from tidegate.groups.model import Synced
from tidegate.groups.waiters import Again, GroupStatus, Opened, Waiter
from tidegate.settings import Settings
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

JOIN_GROUP = Script("groups/join_group")
SYNC_GROUP = Script("groups/sync_group")
READ_GROUP_STATUS = Script("groups/read_group_status")
RENEW_PARKED = Script("groups/renew_parked")

PARK_LEASE_MS: Final = 10_000
"""Time for which a parked request holds its member's session without renewal, in case its broker has died."""
POLL_MS: Final = 500
"""Longest delay of a waiting request by a lost notification."""
_ATTEMPTS_MAX: Final = 10
_RENEWALS_PER_LEASE: Final = 3

OnStatus = Callable[[GroupKeys, GroupStatus], None]

logger = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Entry:
    """One group with waiting requests of this broker."""

    keys: GroupKeys
    watching: int = 0
    group_changes: int = 0
    waiters: dict[Waiter, None] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    due_ms: int = -1
    read_ends_of: float = 0.0
    timer: asyncio.TimerHandle | None = None
    status: GroupStatus | None = None
    """The status that a script of this broker returned when it ended a wait, until it is evaluated."""
    observed_version: int = -1
    """The group's version at the last refresh; notifications up to this version are ignored."""
    renewed_at: float = 0.0
    away_since: float | None = None
    task: asyncio.Task[None] | None = None


class Watch:
    """Subscribes to a group from before its request enters until it is answered, so that no notification is lost."""

    def __init__(self, waits: GroupWaits, keys: GroupKeys) -> None:
        self._waits = waits
        self._keys = keys

    def __enter__(self) -> Watch:
        self._entry = self._waits.submit(self._keys)
        self._subscriptions = self._entry.group_changes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits.leave(self._entry)

    async def joined(
        self, member_id: str, instance_id: str | None, generation: int, phase: int, due_ms: int
    ) -> Opened | Again:
        """Wait until the join phase ends. Raises JoinRefused, StoreUnavailable."""
        answer = await self._wait(Waiter(member_id, instance_id, generation, phase, self._future()), due_ms)
        assert not isinstance(answer, Synced)
        return answer

    async def synced(self, member_id: str, instance_id: str | None, generation: int, due_ms: int) -> Synced | Again:
        """Wait for the assignment. Raises RebalanceInProgress, UnknownMemberId, FencedInstanceId, StoreUnavailable."""
        answer = await self._wait(Waiter(member_id, instance_id, generation, -1, self._future()), due_ms)
        assert not isinstance(answer, Opened)
        return answer

    @staticmethod
    def _future() -> asyncio.Future[Opened | Synced | Again]:
        return asyncio.get_running_loop().create_future()

    async def _wait(self, waiter: Waiter, due_ms: int) -> Opened | Synced | Again:
        self._waits.park(self._entry, waiter, due_ms, missed=self._entry.group_changes != self._subscriptions)
        try:
            return await waiter.answer
        finally:
            self._entry.waiters.pop(waiter, None)


def _join_sent_again(args: Sequence[Arg]) -> Sequence[Arg]:
    """The arguments of a join that is sent again: its time of arrival, the last number, is negative."""
    *others, numbers = args
    timeouts_and_flags, _, arrived_ms = str(numbers).rpartition(" ")
    return [*others, f"{timeouts_and_flags} {-abs(int(arrived_ms))}"]


def _sync_args(keys: GroupKeys) -> list[Arg]:
    """Script arguments common to all syncs."""
    return [PARK_LEASE_MS]


class GroupWaits:
    """The requests of one broker that enter groups and wait. `broker` is the broker name in events.

    `lease_ends_ms` is the end of the broker's lease by Redis's clock: joins that Redis executes later change nothing.
    `on_status` gets each observed status of a group, before any request is answered from it.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        broker: BrokerName = nobody,
        on_status: OnStatus | None = None,
        lease_ends_ms: Callable[[], int] = lambda: WITHOUT_LEASE,
    ) -> None:
        self.broker = broker
        self._store = store
        self._settings = settings
        self.entries: dict[str, _Entry] = {}
        self._on_status = on_status
        self._missed = False
        self._poll_ms = min(POLL_MS, PARK_LEASE_MS // _RENEWALS_PER_LEASE)
        self._lease_ends_ms = lease_ends_ms
        self.joins = RequestBatcher(store, JOIN_GROUP, self._join_args, broker, self.apply_status, _join_sent_again)
        self.syncs = RequestBatcher(store, SYNC_GROUP, _sync_args, broker, self.apply_status)

    def _join_args(self, keys: GroupKeys) -> list[Arg]:
        """Script arguments common to all joins of a group."""
        settings = self._store.settings
        return [
            settings.group_initial_rebalance_delay_ms,
            PARK_LEASE_MS,
            settings.group_max_size,
            lease_end_ms(self._store, keys.group, self._lease_ends_ms),
        ]

    # -- lifecycle

    async def start(self) -> None:
        """Subscribe to every shard's wake channel."""
        await subscribe_group_changes(self._store, self._on_group_change)

    async def close(self) -> None:
        """Stop waiting; parked requests keep their members in the groups."""
        unsubscribe_group_changes(self._store, self._on_group_change)
        tasks = [entry.task for entry in self.entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Number of requests parked on this broker now."""
        return sum(len(entry.waiters) for entry in self.entries.values())

    def watch(self, keys: GroupKeys) -> Watch:
        """Subscribe to a group while the `with` block runs."""
        return Watch(self, keys)

    # -- called by Watch

    def submit(self, keys: GroupKeys) -> _Entry:
        """The entry of a group, which exists until `leave`."""
        entry = self.entries.get(keys.ref)
        if entry is None:
            entry = self.entries[keys.ref] = _Entry(keys)
        entry.watching += 1
        return entry

    def leave(self, entry: _Entry) -> None:
        """Remove one watch; the last one removes the entry."""
        entry.watching -= 1
        if entry.watching == 0:
            self.entries.pop(entry.keys.ref, None)
            if entry.timer is not None:
                entry.timer.cancel()
            if entry.task is not None:
                entry.task.cancel()

    def park(self, entry: _Entry, waiter: Waiter, due_ms: int, *, missed: bool) -> None:
        """Add a waiter to the entry; `missed`: a notification arrived between its entering and now."""
        entry.waiters[waiter] = None
        loop = asyncio.get_running_loop()
        if entry.task is None:
            entry.renewed_at = loop.time()
            entry.task = loop.create_task(self._serve(entry), name=f"wait-{entry.keys.ref}")
            self._poll_group(entry, due_ms)
        elif 0 <= due_ms < (entry.read_ends_of - loop.time()) * 1000 - 1:
            self._poll_group(entry, due_ms)
        if missed:
            entry.changed.set()

    # -- refreshing

    def apply_status(self, keys: GroupKeys, status: GroupStatus) -> None:
        """Use the status in a script's reply, which ended a phase or stored the assignment, as a refresh."""
        self._reply(keys, status)
        entry = self.entries.get(keys.ref)
        if entry is not None:
            entry.status, entry.observed_version = status, status.version
            self._wake(entry)

    def _reply(self, keys: GroupKeys, status: GroupStatus) -> None:
        if self._on_status is not None:
            self._on_status(keys, status)

    def _on_group_change(self, payload: bytes | None) -> None:
        if payload is None:
            if not self._missed:  # after a lost subscription every channel reports it
                self._missed = True
                asyncio.get_running_loop().call_soon(self._wake_all)
            return
        ref, _, _, version = payload.rsplit(b":", 3)
        found = self.entries.get(ref.decode())
        if found is not None and int(version) > found.observed_version:
            self._wake(found)

    def _wake_all(self) -> None:
        self._missed = False
        for entry in self.entries.values():
            self._wake(entry)

    @staticmethod
    def _wake(entry: _Entry) -> None:
        entry.group_changes += 1
        entry.changed.set()

    def _poll_group(self, entry: _Entry, due_ms: int) -> None:
        """Refresh at the next deadline, and after `POLL_MS` in any case."""
        wait_ms = min(due_ms, self._poll_ms) if due_ms >= 0 else self._poll_ms
        loop = asyncio.get_running_loop()
        entry.read_ends_of = loop.time() + max(wait_ms, 1) / 1000
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer = loop.call_at(entry.read_ends_of, entry.changed.set)

    async def _serve(self, entry: _Entry) -> None:
        loop = asyncio.get_running_loop()
        lease_s = PARK_LEASE_MS / 1000
        while True:
            await entry.changed.wait()
            entry.changed.clear()
            try:
                if loop.time() - entry.renewed_at >= lease_s / _RENEWALS_PER_LEASE:
                    entry.renewed_at = loop.time()
                    await self.renew(entry)
                await self.refresh(entry)
                entry.away_since = None
            except StoreUnavailable as error:
                self._note_away(entry, error)
            except Exception as error:
                logger.exception("refresh_failed", group=entry.keys.ref)
                self._note_away(entry, StoreUnavailable(f"the group could not be read: {error}"))
            self._poll_group(entry, entry.due_ms)

    def _note_away(self, entry: _Entry, error: StoreUnavailable) -> None:
        """Keep requests parked while their group cannot be read for a short time; fail them after a longer one."""
        now = asyncio.get_running_loop().time()
        entry.due_ms = -1
        if entry.away_since is None:
            entry.away_since = now
        elif now - entry.away_since > self._settings.redis_command_timeout_ms / 1000:
            for waiter in list(entry.waiters):
                waiter.unavailable(error)

    async def renew(self, entry: _Entry) -> None:
        """Renew the lease of the requests parked in an entry."""
        member_ids = [waiter.member_id for waiter in entry.waiters]
        if member_ids:
            extend_sessions_after_outage(self._store, entry.keys)
            args = self._args(entry.keys, PARK_LEASE_MS, *member_ids)
            await self._store.run(RENEW_PARKED, group_script_keys(entry.keys), *args)

    async def refresh(self, entry: _Entry) -> None:
        """Read the group and answer the waiters whose answer is known."""
        for _ in range(_ATTEMPTS_MAX):
            status, entry.status = entry.status, None
            if status is None:
                extend_sessions_after_outage(self._store, entry.keys)
                reply = await self._store.run(READ_GROUP_STATUS, group_script_keys(entry.keys), *self._args(entry.keys))
                status = GroupStatus.of(reply)
                self._reply(entry.keys, status)
            entry.due_ms, entry.observed_version = status.due_ms, status.version
            waiters = [waiter for waiter in entry.waiters if waiter.checked_version != status.version]
            if not waiters or await self._judge(entry.keys, status, waiters):
                return

    async def _judge(self, keys: GroupKeys, status: GroupStatus, waiters: Sequence[Waiter]) -> bool:
        """Read the waiters' records without a script and answer them; False if the group changed meanwhile."""
        ids = [waiter.member_id for waiter in waiters]
        instances = [waiter.instance_id or "" for waiter in waiters]
        nobody: list[bytes | None] = [None] * len(waiters)
        reads: list[tuple[Arg, ...]] = [("HMGET", keys.members, *ids)]
        if any(instances):
            reads.append(("HMGET", keys.instances, *instances))
        syncing = any(waiter.round < 0 for waiter in waiters) and status.assigned_generation == status.generation
        if syncing:
            reads.append(("HMGET", keys.assignments, *ids))
        *replies, version = await read_in_order(
            self._store, self._store.command, *reads, ("HGET", keys.group, "version")
        )
        if int(version or 0) != status.version:
            return False
        records = replies[0]
        owners = replies[1] if any(instances) else nobody
        assignments = replies[-1] if syncing else nobody
        for waiter, record, owner, assignment in zip(waiters, records, owners, assignments, strict=True):
            try:
                waiter.judge(status, record, owner, assignment)
            except Exception:
                logger.exception("waiting_request_failed", group=keys.ref, member=waiter.member_id)
                waiter.refuse_with(KafkaError("the member's record cannot be read"))
        return True

    def _args(self, keys: GroupKeys, *more: Arg) -> list[Arg]:
        return [*group_script_args(self._store, keys, self.broker()), *more]
