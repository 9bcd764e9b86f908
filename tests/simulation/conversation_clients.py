"""Clients of a conversation: each asks whole brokers of one process by requests, and notes what it was answered.

They do what client libraries do: a producer repeats a batch until it is stored, a reader discards what is below its
position and what was aborted, and starts over where its position is out of range.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.history import (
    Acknowledgement,
    Assigned,
    Commit,
    CommittedFetch,
    Delivery,
    History,
    LogBounds,
    Outcome,
    Poll,
    Records,
    Revoked,
    Send,
    ShareBounds,
    TransactionEnd,
    now_ns,
)
from tests.kit.wire import request
from tests.support.log_broker import fetch_request, produce_request
from tests.support.transactions import transactional
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.groups import configs
from tidegate.groups.share.sessions import SharePartition
from tidegate.protocol.consumer_blobs import read_assignment
from tidegate.records.batch import Batch, iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.control import MarkerType, read_marker
from tidegate.records.record import read_records
from tidegate.topics.catalog import Topic

TOPIC: Final = "t"
GROUP: Final = "g"
PRODUCE_VERSION: Final = 12
ACCEPT, RELEASE = 1, 2
_NONE = ErrorCode.none
_SENDS_MAX: Final = 3
_POLLS_MAX: Final = 40
_WITHIN_S: Final = 30.0
_RETRIED: Final = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.request_timed_out})
_SHARE_CONFIGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "60000",
    "share.delivery.count.limit": "25",  # more than anybody releases one record
}


@dataclass(slots=True)
class Conversation:
    """The brokers of one Redis with one topic, and the history of their clients."""

    brokers: Sequence[WholeBroker]
    rng: random.Random
    topic: Topic
    history: History = field(default_factory=History)

    def partition(self, index: int) -> str:
        """Its name in the history."""
        return f"{TOPIC}-{index}"

    async def note_bounds(self) -> list[int]:
        """Note bounds of every partition; their ends."""
        ends = []
        for index in range(self.topic.partition_count):
            partition = {
                "partition_index": index, "current_leader_epoch": -1, "timestamp": -1,
            }  # fmt: skip
            asked = [{"name": TOPIC, "partitions": [partition]}]
            answer = await self.brokers[0].client().ask(request(2, 5, replica_id=-1, isolation_level=1, topics=asked))
            ends.append(int(answer.topics[0].partitions[0].offset))
            self.history.add(LogBounds(now_ns(), self.partition(index), 0, ends[-1]))
        return ends

    async def share_groups(self) -> None:
        """Set the configs of the share group."""
        store = self.brokers[0].store
        await configs.alter(store, store.group_keys("default", GROUP), _SHARE_CONFIGS, [])

    async def note_share_bounds(self) -> None:
        """Note the first unfinished offset of the share group in partition 0."""
        broker = self.brokers[0]
        one = SharePartition(self.topic.topic_id, 0)
        keys = broker.store.group_keys("default", GROUP)
        (found,) = await broker.context.shares.records.progress(keys, [one])
        self.history.add(ShareBounds(now_ns(), GROUP, self.partition(0), found.start))


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch as it is sent, once or more often."""

    values: tuple[str, ...]
    index: int
    data: bytes
    began: int
    transaction: str | None


class Producer:
    """An idempotent producer at one broker; with a transactional id each batch is of the open transaction."""

    def __init__(self, talk: Conversation, name: str, broker: int = 0, transactional_id: str | None = None) -> None:
        self._talk, self.name, self._client = talk, name, talk.brokers[broker].client(name)
        self._transactional_id = transactional_id
        self._id = self._epoch = -1
        self._sequences: dict[int, int] = {}
        self._values = self._transactions = 0

    async def init(self) -> Producer:
        """Get a producer id."""
        minute = timedelta(minutes=1)
        own = {"transactional_id": self._transactional_id, "transaction_timeout": minute}
        answer = await self._client.ask(request(22, 4, **own, producer_id=-1, producer_epoch=-1))
        assert answer.error_code is _NONE, answer
        self._id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        return self

    def batch(self, index: int = 0) -> SentBatch:
        """The next records of a partition: one to three, of different sizes."""
        rng, began, first = self._talk.rng, now_ns(), self._values
        self._values += rng.choice((1, 1, 2, 3))
        values = tuple(f"{self.name}:{number}:{'x' * rng.randint(0, 90)}" for number in range(first, self._values))
        sequence = self._sequences.get(index, 0)
        self._sequences[index] = sequence + len(values)
        data = build_batch(
            [NewRecord(value.encode(), timestamp=1_700_000_000_000) for value in values],
            producer_id=self._id, producer_epoch=self._epoch, base_sequence=sequence,
        )  # fmt: skip
        transaction = None
        if self._transactional_id is not None:
            data, transaction = transactional(data), f"{self.name}.{self._transactions}"
        return SentBatch(values, index, data, began, transaction)

    async def send(self, batch: SentBatch, *, repeated: bool = False, delay_s: float = 0.0) -> None:
        """Send until it is stored, once more if `repeated`: the first answer is lost."""
        await asyncio.sleep(delay_s)
        if repeated:
            await self._ask(batch)
        for _ in range(_SENDS_MAX):
            code, offset = await self._ask(batch)
            if code not in _RETRIED:
                break
        outcome = Outcome.OK if code is _NONE else Outcome.UNKNOWN
        ended, partition = now_ns(), self._talk.partition(batch.index)
        for number, value in enumerate(batch.values):
            where = offset + number if code is _NONE else -1
            sent = Send(
                self.name, batch.began + number, ended, partition, value, outcome, where, True, batch.transaction
            )
            self._talk.history.add(sent)

    async def _ask(self, batch: SentBatch) -> tuple[ErrorCode, int]:
        answer = await self._client.ask(
            produce_request(
                [(TOPIC, [(batch.index, batch.data)])],
                version=PRODUCE_VERSION, transactional_id=self._transactional_id,
            )
        )  # fmt: skip
        found = answer.responses[0].partition_responses[0]
        return found.error_code, int(found.base_offset)

    async def end(self, committed: bool) -> None:
        """EndTxn; the next transaction has the producer's next epoch."""
        began = now_ns()
        answer = await self._client.ask(
            request(
                26, 5, transactional_id=self._transactional_id, producer_id=self._id, producer_epoch=self._epoch,
                committed=committed,
            )
        )  # fmt: skip
        assert answer.error_code is _NONE, answer
        transaction = f"{self.name}.{self._transactions}"
        self._talk.history.add(TransactionEnd(self.name, began, now_ns(), transaction, committed, Outcome.OK))
        self._id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        self._sequences.clear()
        self._transactions += 1


class Reader:
    """A `read_committed` consumer; outside of sessions unless `in_session`."""

    def __init__(self, talk: Conversation, name: str, group: str | None = None) -> None:
        self._talk, self.name, self._group = talk, name, group
        self.client: ClientOf = talk.brokers[0].client(name)
        self.client.group_id = group or ""
        self.positions: dict[int, int] = {}
        self._session = (0, 0)
        self._fetched: set[int] = set()

    async def poll(self, bytes_max: int = 1 << 20, min_bytes: int = 1, max_wait_ms: int = 0) -> None:
        """One fetch of all its partitions, as of a client without sessions."""
        wanted = sorted(self.positions.items())
        await self._fetch(wanted, partition_max_bytes=bytes_max, min_bytes=min_bytes, max_wait_ms=max_wait_ms)

    async def poll_in_session(self) -> None:
        """The same by an incremental fetch (KIP-227), which forgets partitions that are not read any more."""
        wanted, (session_id, epoch) = sorted(self.positions.items()), self._session
        forgotten = [(TOPIC, sorted(self._fetched - self.positions.keys()))] if session_id else []
        answer = await self._fetch(wanted, session=self._session, forgotten=[one for one in forgotten if one[1]])
        self._session = (answer.session_id, epoch + 1)
        self._fetched = set(self.positions)

    async def read_to(self, ends: Mapping[int, int], bytes_max: Callable[[], int] = lambda: 1 << 20) -> None:
        """Poll until these offsets are reached, or no more comes for long."""
        left, furthest = _POLLS_MAX, sum(self.positions.values())
        while left and any(self.positions[index] < end for index, end in ends.items()):
            await self.poll(bytes_max(), max_wait_ms=20)
            reached = sum(self.positions.values())
            left, furthest = (_POLLS_MAX, reached) if reached > furthest else (left - 1, furthest)

    async def _fetch(self, wanted: Iterable[tuple[int, int]], **options: Any) -> Any:
        began = now_ns()
        asked = fetch_request([(TOPIC, list(wanted))], isolation_level=1, **options)
        answer = await self.client.ask(asked)
        assert answer.error_code is _NONE, answer
        for one in (one for topic in answer.responses for one in topic.partitions):
            self._take(one, began)
        return answer

    def _take(self, found: Any, began: int) -> None:
        index, position = found.partition_index, self.positions.get(found.partition_index, 0)
        if found.error_code is ErrorCode.offset_out_of_range:  # auto.offset.reset=earliest
            self.positions[index] = 0
            return
        assert found.error_code is _NONE, found
        batches = list(iter_headers(found.records or b""))
        aborted = [(int(one.producer_id), int(one.first_offset)) for one in found.aborted_transactions or ()]
        records = _committed(batches, aborted, position)
        if batches:
            self.positions[index] = batches[-1].next_offset
        if records:
            partition = self._talk.partition(index)
            self._talk.history.add(Poll(self.name, began, now_ns(), partition, records, self._group))


def _committed(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]], position: int) -> Records:
    """What a consumer hands out: no markers, and nothing of the transactions that the broker named as aborted."""
    pending, active, records = sorted(aborted, key=lambda one: one[1]), set[int](), list[tuple[int, str]]()
    for batch in batches:
        while pending and pending[0][1] <= batch.base_offset:
            active.add(pending.pop(0)[0])
        if batch.is_control:
            marker = read_marker(batch.buffer)
            if marker is not None and marker.type is MarkerType.ABORT:
                active.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in active):
            records += [(one.offset, (one.value or b"").decode()) for one in read_records(batch)]
    return tuple(one for one in records if one[0] >= position)


class Member(Reader):
    """A member of a classic group that assigns all partitions evenly."""

    def __init__(self, talk: Conversation, name: str) -> None:
        super().__init__(talk, name, GROUP)

    @property
    def generation(self) -> int:
        return self.client.generation

    async def join(self) -> None:
        """Give up everything and join; `sync` follows."""
        self._revoke()
        await self.client.join(TOPIC)

    async def sync(self) -> None:
        """Get an assignment, and begin at the committed offsets. The leader must be first."""
        members = sorted(self.client.members)
        everything = range(self._talk.topic.partition_count)
        plan = {member: {TOPIC: everything[at :: len(members)]} for at, member in enumerate(members)}
        answer = await self.client.sync(plan)
        found = read_assignment(bytes(answer.assignment))
        assert found is not None
        mine = sorted(found[0].get(TOPIC, ()))
        names = tuple(map(self._talk.partition, mine))
        self._talk.history.add(
            Assigned(self.name, now_ns(), GROUP, self.client.member_id, self.client.generation, names)
        )
        self.positions = {index: max(offset, 0) for index, offset in (await self.committed(mine)).items()}

    @property
    def is_leader(self) -> bool:
        return bool(self.client.members)

    async def preparing(self) -> None:
        """Wait until the group rebalances."""
        async with asyncio.timeout(_WITHIN_S):
            while (await self.client.describe()).group_state != "PreparingRebalance":
                await asyncio.sleep(0.01)

    async def leave(self) -> None:
        """Give up everything and leave."""
        self._revoke()
        await self.client.leave()

    def _revoke(self) -> None:
        gone = tuple(map(self._talk.partition, sorted(self.positions)))
        self.positions = {}
        if gone:
            self._talk.history.add(Revoked(self.name, now_ns(), GROUP, gone))

    async def commit(self, generation: int | None = None) -> None:
        """Commit its positions; with a `generation` that it had before, as a request that was late."""
        current = self.client.generation
        for index, offset in sorted(self.positions.items()):
            began = now_ns()
            self.client.generation = current if generation is None else generation
            code = await self.client.commit(TOPIC, offset, index)
            outcome = Outcome.OK if code is _NONE else Outcome.FAILED
            named = {self._talk.partition(index): offset}
            self._talk.history.add(Commit(self.name, began, now_ns(), GROUP, self.client.generation, named, outcome))
            self.client.generation = current

    async def committed(self, indexes: Iterable[int]) -> dict[int, int]:
        """The group's committed offsets of partitions."""
        found = {}
        for index in indexes:
            began = now_ns()
            found[index] = await self.client.committed(TOPIC, index)
            named = {self._talk.partition(index): found[index]}
            self._talk.history.add(CommittedFetch(self.name, began, now_ns(), GROUP, named))
        return found


class ShareMember:
    """A member of a share group that reads partition 0."""

    def __init__(self, talk: Conversation, name: str) -> None:
        self._talk, self.name = talk, name
        self._client = talk.brokers[0].client(name)
        self._session = 0
        self._member = {"group_id": GROUP, "member_id": name}

    async def join(self) -> ShareMember:
        """Join, and open a share session."""
        answer = await self._client.ask(
            request(76, 1, **self._member, member_epoch=0, rack_id=None, subscribed_topic_names=(TOPIC,))
        )
        assert answer.error_code is _NONE, answer
        await self.fetch(1)
        return self

    async def fetch(self, records_max: int) -> list[int]:
        """Offsets of the records that it was given."""
        partition = {"partition_index": 0, "acknowledgement_batches": ()}
        topic = {"topic_id": self._talk.topic.topic_id, "partitions": [partition]}
        answer = await self._client.ask(
            request(
                78, 1, **self._member, share_session_epoch=self._session, max_wait=timedelta(milliseconds=50),
                min_bytes=1, max_bytes=1 << 20, max_records=records_max, batch_size=records_max,
                topics=[topic] if self._session == 0 else (), forgotten_topics_data=(),
            )
        )  # fmt: skip
        assert answer.error_code is _NONE, answer
        self._session += 1
        given: list[tuple[int, str, int]] = []
        for found in (one for topic in answer.responses for one in topic.partitions):
            assert found.error_code is _NONE, found
            values = {
                one.offset: (one.value or b"").decode()
                for batch in iter_headers(found.records or b"")
                for one in read_records(batch)
            }
            given += [
                (offset, values[offset], one.delivery_count)
                for one in found.acquired_records
                for offset in range(one.first_offset, one.last_offset + 1)
                if offset in values
            ]
        if given:
            self._talk.history.add(Delivery(self.name, now_ns(), GROUP, self._talk.partition(0), tuple(given)))
        return [offset for offset, _, _ in given]

    async def acknowledge(self, accepted: Sequence[int], released: Sequence[int] = ()) -> None:
        """Accept some and release others."""
        if not accepted and not released:
            return
        kinds = dict.fromkeys(accepted, ACCEPT) | dict.fromkeys(released, RELEASE)
        batches = [
            {
                "first_offset": offset,
                "last_offset": offset,
                "acknowledge_types": (kind,),
            }
            for offset, kind in sorted(kinds.items())
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        topic = {"topic_id": self._talk.topic.topic_id, "partitions": [partition]}
        began = now_ns()
        answer = await self._client.ask(
            request(79, 1, **self._member, share_session_epoch=self._session, topics=[topic])
        )
        assert answer.error_code is _NONE, answer
        self._session += 1
        code = answer.responses[0].partitions[0].error_code
        outcome = Outcome.OK if code is _NONE else Outcome.FAILED
        where = GROUP, self._talk.partition(0), tuple(accepted), tuple(released)
        self._talk.history.add(Acknowledgement(self.name, began, now_ns(), *where, outcome))
