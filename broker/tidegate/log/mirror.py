"""Mirror Kafka groups as Redis consumer groups, so that Redis tools show delivered and uncommitted entries.

`XINFO GROUPS`, `XINFO CONSUMERS` and `XPENDING` on a partition's stream show the mirror; the committed offset in the
group's `offsets` remains authoritative. A fetch is answered first, from the tail cache as usual; its delivered
entries, and each commit, become events for the mirror. Events are written in the background: at once after an idle
interval, then every `_INTERVAL_S`, by one script per partition and group regardless of the number of fetches. No
request waits for the write. While Redis is away, commits wait, one for each group and partition, and deliveries wait up
to `_AWAY_S`. Events that Redis refuses for what a key contains are lost; the next write creates a missing mirror.

A Fetch request does not name a group. It counts for the group in which exactly one owner of the partition (`owners`)
has the connection's client id and host, while the group has the generation recorded with the owner. Reads that match no
owner (assigned partitions, KIP-848, another address) show by their commits, which move the position up. Where several
connections read as the owner (`Reading`), or the owners of several groups are alike, the owner is withdrawn: the mirror
shows committed offsets only, until the next generation.

A commit that goes back is written with the events of its interval: what the member continues to read meanwhile, without
a seek, is not shown as pending until it is delivered again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import chain, starmap, zip_longest
from typing import Any, Final

import structlog

from tidegate.errors import IllegalGeneration, KafkaError, StoreUnavailable
from tidegate.log.entries import id_of
from tidegate.log.mirror_news import SILENT_S, Delivered, PartitionNews
from tidegate.log.owners import Connection, Owned, Owner, note_owner, parse_owners
from tidegate.settings import Settings
from tidegate.store.calls import gather_each
from tidegate.store.link import Arg
from tidegate.store.outcome import FaultyKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.model import Topic

DELIVER: Final = Script("log/deliver")
ACKNOWLEDGE: Final = Script("log/acknowledge")
FORGET_MIRROR: Final = Script("log/forget_mirror")
WITHDRAW_OWNER: Final = Script("log/withdraw_owner")

logger = structlog.get_logger()

PENDING_MAX: Final = 1_000
"""Entries that a partition's mirror shows as pending, 170 kB; the oldest are acknowledged first."""
_INTERVAL_S: Final = 0.2
_REST: Final = 4
"""Pause after a write, as a multiple of its duration: the mirror uses at most a fifth of the time."""
_AT_ONCE: Final = 64
"""Partitions written concurrently."""
_OWNERS_S: Final = 1.0
"""How long cached owners and generations are used."""
_UNOWNED_S: Final = 2.0
"""How long events wait for an owner: after a rebalance the first fetch may precede the owner's record."""
_AWAY_S: Final = 60.0
"""How long deliveries wait for Redis. Commits wait without an end: they show the position too."""
_RETRY_S: Final = 1.0
"""Pause after a write that Redis did not take."""
_IDS_MAX: Final = 1_000
_SLICE: Final = 500
_IDLE_S: Final = 60.0
_LAST_S: Final = 1.0

_Delivery = tuple[PartitionNews, Connection, Delivered]


def _nothing() -> None:
    """No commit waits to be reported."""


class Mirror:
    """The mirror events of one broker, written between `start` and `close`."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._pending_max = PENDING_MAX
        self._loop = asyncio.get_event_loop()
        self._partitions: dict[tuple[str, int], PartitionNews] = {}
        self._pending_positions: dict[PartitionNews, None] = {}
        self._reported = asyncio.Event()
        self._generations: dict[tuple[str, str], tuple[str, int]] = {}
        self._is_away = False
        self._loops = BackgroundTasks()
        self.tasks = TaskSet()
        self.connections: set[int] = set()
        """The open connections that have fetched."""
        self.commits_wait = False
        """Whether commits are stored that are not reported yet."""
        self.before_step: Callable[[], None] = _nothing
        """Reports them; called where the order of commits and reads matters."""

    async def start(self) -> None:
        """Start writing."""
        self._loops.run("mirror", self._write_for_ever)

    async def close(self) -> None:
        """Write pending events for a bounded time and stop: the next fetch of a group may be long after this."""
        await self._loops.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await quietly(self.write())
        await self.tasks.close()

    # -- events

    def fetched(
        self, topic: Topic, index: int, connection: Connection, offset: int, end_offset: int, bases: Sequence[int]
    ) -> None:
        """A client received the entries that start at `bases`: the records from `offset` to `end_offset`."""
        if topic.config.mirror:
            partition, now_s = self._partition(topic, index), self._loop.time()
            judged = partition.judged_readers.get(connection)
            if judged is None:
                partition.read_by(connection, now_s)
            else:
                judged.current_s = now_s
            if self.commits_wait and partition.position(connection) != offset:
                self.before_step()
            if bases or partition.position(connection) != offset:  # skip repeated fetches at the log end
                partition.fetched(connection, offset, end_offset, bases, now_s)
                self._reply(partition)

    def fetched_together(
        self,
        topic: Topic,
        index: int,
        connections: Sequence[Connection],
        offset: int,
        end_offset: int,
        bases: Sequence[int],
    ) -> None:
        """Several clients received the same entries."""
        if topic.config.mirror:
            if self.commits_wait:
                for connection in connections:
                    self.fetched(topic, index, connection, offset, end_offset, bases)
                return
            partition, now_s = self._partition(topic, index), self._loop.time()
            judged_readers = partition.judged_readers
            for connection in connections:
                judged = judged_readers.get(connection)
                if judged is None:
                    partition.read_by(connection, now_s)
                else:
                    judged.current_s = now_s
            partition.fetched_together(connections, offset, end_offset, bases, now_s)
            self._reply(partition)

    def committed(self, topic: Topic, index: int, group_id: str, offset: int) -> None:
        """A group committed an offset."""
        if topic.config.mirror and offset >= 0:
            partition = self._partition(topic, index)
            partition.committed(group_id, offset)
            self._reply(partition)

    def _partition(self, topic: Topic, index: int) -> PartitionNews:
        key = topic.topic_hex, index
        partition = self._partitions.get(key)
        if partition is None:
            keys = self._store.log_keys(topic.org, topic.name, index, topic.topic_hex, topic.format)
            partition = self._partitions[key] = PartitionNews(topic.org, keys)
        return partition

    def _reply(self, partition: PartitionNews) -> None:
        self._pending_positions[partition] = None
        self._reported.set()

    # -- owners

    async def own(self, group_id: str, owners: Iterable[tuple[Topic, int, Owner]]) -> None:
        """Record the owners of partitions in a group."""

        def note(topic: Topic, index: int, owner: Owner) -> Awaitable[None]:
            partition = self._partition(topic, index)
            partition.owners_s = float("-inf")
            return note_owner(self._store, partition.keys, group_id, owner)

        await gather_each((note(*one) for one in owners if one[0].config.mirror), _AT_ONCE)

    async def forget(self, group_id: str, own_id: str, partitions: Iterable[tuple[Topic, int]]) -> None:
        """Remove the mirrors of a deleted group, whose own id was `own_id`."""
        self.before_step()

        def forget(topic: Topic, index: int) -> Awaitable[None]:
            return self._forget(self._partition(topic, index), group_id, own_id)

        await gather_each(starmap(forget, partitions), _AT_ONCE)

    async def _forget(self, partition: PartitionNews, group_id: str, own_id: str) -> None:
        await self._store.run(FORGET_MIRROR, [*partition.mirror_keys, partition.keys.readers], group_id, own_id)

    # -- writing

    async def _write_for_ever(self) -> None:
        swept_s = self._loop.time()
        while True:
            await self._reported.wait()
            self._reported.clear()
            began_s, self._is_away = self._loop.time(), False
            await self.write()
            if began_s - swept_s > _IDLE_S:
                swept_s = began_s
                self._sweep(began_s)
            rest_s = max(_INTERVAL_S, _REST * (self._loop.time() - began_s))
            await asyncio.sleep(_RETRY_S if self._is_away else rest_s)

    async def write(self) -> None:
        """Write all pending events."""
        self.before_step()
        reported, self._pending_positions = list(self._pending_positions), {}
        for at in range(0, len(reported), _AT_ONCE):
            await self._write(reported[at : at + _AT_ONCE])

    async def _write(self, partitions: Sequence[PartitionNews]) -> None:
        now_s, taken = self._loop.time(), []
        for partition in partitions:
            partition.used_s = now_s
            taken.append([(partition, news) for news in partition.take()])
        for one_each in zip_longest(*taken):
            reported = [one for one in one_each if one is not None]
            deliveries = [(partition, *one) for partition, news in reported for one in news.delivered.items()]
            commits = [(partition, *one) for partition, news in reported for one in news.committed.items()]
            if deliveries:
                await self._read_owners(dict.fromkeys(partition for partition, _, _ in deliveries))
                await gather_each(starmap(self._show, self._of_owners(deliveries)), _AT_ONCE)
            await gather_each(starmap(self._acknowledge, commits), _AT_ONCE)

    async def _read_owners(self, partitions: Iterable[PartitionNews]) -> None:
        """Refresh owners and the generations of their groups; drop owners whose group no longer exists.

        `owners_s` is -inf where Redis is away; the former owners stay.
        """
        now_s = self._loop.time()
        stale = [one for one in partitions if now_s - one.owners_s > _OWNERS_S]
        for partition, reply in zip(stale, await self._ask(["HGETALL", one.keys.owners] for one in stale), strict=True):
            partition.owners_s = float("-inf") if reply is None else now_s
            if reply is not None:
                partition.owners = parse_owners(reply or {})
        owned = [(one, found) for one in stale for alike in one.owners.values() for found in alike]
        groups = list(dict.fromkeys((one.org, found.group_id) for one, found in owned))
        keys = [self._store.stored_group_keys(*group).group for group in groups]
        heads = await self._ask(["HMGET", key, "id", "generation"] for key in keys)
        for group, head in zip(groups, heads, strict=True):
            if head:
                self._generations[group] = (head[0] or b"").decode(), int(head[1] or -1)
        unread = {group for group, head in zip(groups, heads, strict=True) if head is None}
        for partition, found in owned:
            if (partition.org, found.group_id) in unread:
                partition.owners_s = float("-inf")
            own_id, _ = self._generations.get((partition.org, found.group_id), (found.owner.id, 0))
            if own_id != found.owner.id:
                self.tasks.start(quietly(self._forget(partition, found.group_id, found.owner.id)))

    async def _ask(self, commands: Iterable[list[Arg]]) -> list[Any]:
        """The replies: None while Redis is away, empty for a key of another type."""
        replies = await gather_each(self._store.command(*one) for one in commands)
        return [self._value(reply) if isinstance(reply, KafkaError) else reply for reply in replies]

    def _value(self, error: KafkaError) -> list[Any] | None:
        return None if self._waits_for_redis(error) else []

    def _waits_for_redis(self, error: KafkaError) -> bool:
        """Whether the same will succeed when Redis is back, which delays the next write."""
        is_away = isinstance(error, StoreUnavailable) and not isinstance(error, FaultyKeys)
        self._is_away = self._is_away or is_away
        return is_away

    def _of_owners(
        self, deliveries: Iterable[_Delivery]
    ) -> Iterator[tuple[PartitionNews, Owned, Connection, Delivered]]:
        """The deliveries whose client is the owner in exactly one group; most clients may have no group."""
        for partition, connection, delivered in deliveries:
            found = [one for one in partition.owners.get(connection[:2], ()) if self._is_current(partition.org, one)]
            if not found:
                is_known = partition.owners_s > float("-inf")
                self._put_back(partition, connection, delivered, _UNOWNED_S if is_known else _AWAY_S)
            elif len(found) > 1 or self._is_shared(partition, connection, found[0]):
                for owned in found:
                    self.tasks.start(quietly(self._withdraw(partition, owned)))
            elif self._reads_for_owner(partition, connection):
                yield partition, found[0], connection, delivered
            else:
                self._put_back(partition, connection, delivered, 2 * SILENT_S)

    def _is_current(self, org: str, owned: Owned) -> bool:
        return self._generations.get((org, owned.group_id)) == (owned.owner.id, owned.owner.generation)

    def _is_shared(self, partition: PartitionNews, connection: Connection, owned: Owned) -> bool:
        """Whether several connections read as one owner; a new owner is judged by what is read from then on."""
        reading = partition.readings.get(connection[:2])
        if reading is not None and reading.owner != owned.record:
            partition.renew(reading, owned.record)
        return reading is not None and reading.is_shared

    def _reads_for_owner(self, partition: PartitionNews, connection: Connection) -> bool:
        reading, now_s = partition.readings.get(connection[:2]), self._loop.time()
        if reading is None or connection == reading.current:
            return True
        if not reading.may_take_over(now_s, self.connections):
            return False
        reading.take_over(connection, now_s)
        return True

    async def _withdraw(self, partition: PartitionNews, owned: Owned) -> None:
        partition.owners_s = float("-inf")
        await self._store.run(WITHDRAW_OWNER, partition.mirror_keys, owned.group_id, owned.record)

    async def _withdraw_former(self, partition: PartitionNews, group_id: str) -> None:
        """Withdraw an owner that left, or is of another generation: its last read is above what the group commits."""
        group = self._store.stored_group_keys(partition.org, group_id).group
        *generation, state = await self._store.command("HMGET", group, "id", "generation", "state")
        record = await self._store.command("HGET", partition.keys.owners, group_id)
        for owned in chain(*parse_owners({group_id.encode(): record or b""}).values()):
            noted = [owned.owner.id.encode(), b"%d" % owned.owner.generation]
            if state == b"Empty" or generation != noted:
                await self._withdraw(partition, owned)

    def _put_back(self, partition: PartitionNews, connection: Connection, delivered: Delivered, most_s: float) -> None:
        if self._loop.time() - delivered.since_s < most_s:
            del delivered.bases[: -self._pending_max]
            partition.put_back(connection, delivered)
            self._reply(partition)

    async def _show(self, partition: PartitionNews, owned: Owned, connection: Connection, delivered: Delivered) -> None:
        try:
            await self._deliver(partition, owned, delivered)
        except IllegalGeneration:  # the owner changed
            partition.owners_s = float("-inf")
            self._put_back(partition, connection, delivered, _UNOWNED_S)
        except KafkaError as error:
            if self._waits_for_redis(error):
                self._put_back(partition, connection, delivered, _AWAY_S)

    async def _deliver(self, partition: PartitionNews, owned: Owned, delivered: Delivered) -> None:
        group_id, member_id = owned.group_id, owned.owner.member_id
        bases = delivered.bases[-self._pending_max :]
        for at in range(0, len(bases) or 1, _IDS_MAX):
            ids = [id_of(base) for base in bases[at : at + _IDS_MAX]]
            first = partition.reads.get(group_id) != member_id
            args: list[Arg] = [group_id, owned.record, member_id, delivered.position, self._pending_max, int(first)]
            await self._store.run(DELIVER, partition.mirror_keys, *args, *ids)
            partition.reads[group_id] = member_id

    async def _acknowledge(self, partition: PartitionNews, group_id: str, offsets: Sequence[int]) -> None:
        try:
            for offset in offsets:
                more = 1
                while more == 1:
                    _, more = await self._store.run(ACKNOWLEDGE, partition.mirror_keys, group_id, offset, _SLICE)
                if more:  # it is below the last one
                    await self._withdraw_former(partition, group_id)
        except KafkaError as error:
            if self._waits_for_redis(error):
                partition.put_back_commits(group_id, offsets)
                self._reply(partition)

    def _sweep(self, now_s: float) -> None:
        """Forget partitions that had no fetch for a while."""
        for key, partition in list(self._partitions.items()):
            if partition not in self._pending_positions and now_s - partition.used_s > _IDLE_S:
                del self._partitions[key]
        self._generations.clear()


async def quietly(work: Coroutine[Any, Any, None]) -> None:
    """Run background work for the mirrors; log a failure."""
    try:
        await work
    except KafkaError as error:
        logger.debug("mirror_put_off", reason=str(error))
    except Exception:
        logger.exception("mirror_failed")
