"""Random conversations about the log of one topic: producers, readers and administrators, right and wrong steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from tests.conformance.differential import log_batches
from tests.conformance.differential.log_batches import RECORD_TIME, Shape
from tests.conformance.differential.log_conversation import ELSEWHERE, Conversation, only

_STEPS: Final = (25, 50)
_CONFIGS: Final = (
    {}, {}, {}, {"cleanup_policy": "compact"}, {"cleanup_policy": "compact,delete"},
    {"message_timestamp_type": "LogAppendTime"}, {"max_message_bytes": "150"}, {"compression_type": "gzip"},
    {"compression_type": "uncompressed"}, {"max_decompressed_message_bytes": "60"},
    {"message_timestamp_before_max_ms": "1000"}, {"min_insync_replicas": "2"},
)  # fmt: skip
_SPECIAL: Final = (-1, -2, -3, -4, -5, -6, -7, -9)
_NOWHERE: Final = UUID("7f1e6c52-9d0b-4a3e-8a55-0c2f6f0d9b11")
_COMPACTED: Final = "compact"


async def log_conversation(talk: Conversation) -> None:
    """Produce, fetch, ask for positions, delete, configure; at last everything is read."""
    walk = _Walk(talk)
    configs = talk.chance.choice(_CONFIGS)
    walk.keyed = _COMPACTED in configs.get("cleanup_policy", "")
    await talk.topics({walk.topic: walk.partition_count}, **configs)
    for _ in range(2):
        await talk.ask(22, 4, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
    for _ in range(talk.chance.randint(*_STEPS)):
        await walk.step()
    await talk.fetch(walk.topic, dict.fromkeys(range(walk.partition_count), 0), note="at last")
    await talk.describe_producers(walk.topic, range(walk.partition_count))


class _Producer:
    """What an idempotent producer would send next to each partition, and what it sent last."""

    def __init__(self, name: str) -> None:
        self.name, self.epoch = name, 0
        self.sequences: dict[int, int] = {}
        self.sent: dict[int, list[tuple[Shape, int, int]]] = {}


class _Walk:
    """Chooses each next step by chance, and by the ends of the log at Kafka."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.chance = talk, talk.chance
        self.topic, self.partition_count = f"{talk.group}-log", talk.chance.randint(1, 3)
        self.keyed = False
        self.ends = dict.fromkeys(range(self.partition_count), 0)
        self.producers = [_Producer("producer 1"), _Producer("producer 2")]
        self.session_epoch = 0

    async def step(self) -> None:
        """One step."""
        steps: list[tuple[Callable[[], Awaitable[Any]], float]] = [
            (self.produce, 4), (self.produce_damaged, 3), (self.produce_idempotent, 4), (self.produce_oddly, 0.7),
            (self.fetch, 3), (self.fetch_in_session, 3), (self.fetch_oddly, 1), (self.list_offsets, 3),
            (self.leader_epoch, 1), (self.delete_records, 1), (self.producers_of, 1), (self.configure, 0.3),
            (self.more_partitions, 0.15), (self.init_producer, 0.2),
        ]  # fmt: skip
        choices, weights = zip(*steps, strict=True)
        await self.chance.choices(choices, weights)[0]()

    @property
    def index(self) -> int:
        """Some partition."""
        return self.chance.randrange(self.partition_count)

    def _note_ends(self, answer: Any, counts: dict[int, int]) -> None:
        for one in only(answer, "responses")["partition_responses"]:
            if one["error_code"] == "none":
                end = one["base_offset"] + counts.get(one["index"], 1)
                self.ends[one["index"]] = max(self.ends[one["index"]], end)

    # -- producers

    async def produce(self) -> None:
        """Valid batches to one or more partitions."""
        chance = self.chance
        indexes = chance.sample(range(self.partition_count), chance.randint(1, self.partition_count))
        shapes = {index: log_batches.good(chance, keyed=self.keyed and chance.random() < 0.8) for index in indexes}
        version = chance.randint(3, 13)
        raw = {index: shape.bytes_of() for index, shape in shapes.items()}
        answer = await self.talk.produce(self.topic, raw, version, acks=chance.choice((-1, 1)))
        self._note_ends(answer, {index: shape.count for index, shape in shapes.items()})

    async def produce_damaged(self) -> None:
        """A batch that is mostly wrong, alone or beside a valid one."""
        chance = self.chance
        index, shape = self.index, log_batches.damaged(chance)
        batches = {index: shape.bytes_of()}
        if self.partition_count > 1 and chance.random() < 0.3:
            batches[(index + 1) % self.partition_count] = log_batches.good(chance, count=1).bytes_of()
        answer = await self.talk.produce(self.topic, batches, chance.randint(3, 13), note=shape.name)
        self._note_ends(answer, {index: shape.count})

    async def produce_oddly(self) -> None:
        """Requests that are wrong as a whole, or name what is not there."""
        chance, raw = self.chance, replace(log_batches.good(self.chance, count=1), codec=0).bytes_of()
        version = chance.randint(3, 12)
        odd = chance.choice(("acks", "partition", "topic", "id", "nothing", "twice", "name", "internal"))
        if odd == "acks":
            await self.talk.produce(self.topic, {self.index: raw}, version, acks=chance.choice((2, -2, 7)))
        elif odd == "partition":
            await self.talk.produce(self.topic, {self.partition_count: raw, -1: raw}, version)
        elif odd == "id":
            entries = [{"topic_id": id_, "partition_data": [{"index": 0, "records": raw}]} for id_ in (_NOWHERE, None)]
            entries = entries[: chance.randint(1, 2)]
            await self.talk.ask(0, 13, transactional_id=None, acks=1, timeout=30_000, topic_data=entries)
        elif odd == "nothing":
            await self.talk.ask(0, version, transactional_id=None, acks=1, timeout=30_000, topic_data=[])
        elif odd == "twice":
            index = self.index
            entry = {"name": self.topic, "partition_data": [{"index": index, "records": raw}]}
            await self.talk.ask(
                0, version, "producer", "twice", transactional_id=None, acks=1, timeout=30_000, topic_data=[entry] * 2
            )
            self.ends[index] += 2
        else:
            name = {"topic": "nobody-made-this", "name": "bad/name", "internal": "__consumer_offsets"}[odd]
            await self.talk.produce(name, {0: raw}, version)

    async def produce_idempotent(self) -> None:
        """The next sequence, one again, one too far, another epoch."""
        chance, producer, index = self.chance, self.chance.choice(self.producers), self.index
        shape = log_batches.good(chance, keyed=self.keyed)
        sent = producer.sent.setdefault(index, [])
        epoch, sequence = producer.epoch, producer.sequences.get(index, chance.choice((0, 0, 0, 42, 2**31 - 2)))
        odd = chance.choices(["", "again", "gap", "overlap", "older epoch", "newer epoch"], [6, 2, 1, 0.7, 0.6, 0.6])[0]
        if odd == "again" and sent:
            shape, epoch, sequence = chance.choice(sent)
        elif odd == "gap":
            sequence += chance.randint(1, 4)
        elif odd == "overlap" and sequence:
            sequence -= 1
        elif odd == "older epoch" and epoch:
            epoch -= 1
        elif odd == "newer epoch":
            epoch, sequence = epoch + 1, chance.choice((0, 0, sequence))
        sequence %= 2**31
        raw = self.talk.batch(shape, producer.name, epoch, sequence)
        note = odd if len(sent) < 6 or (shape, epoch, sequence) not in sent[:-5] else "again, old"
        actor = ELSEWHERE if (shape, epoch, sequence) in sent else "producer"
        answer = await self.talk.produce(self.topic, {index: raw}, chance.randint(3, 13), note=note, actor=actor)
        if only(answer, "responses", "partition_responses")["error_code"] == "none" and odd != "again":
            if epoch > producer.epoch:
                producer.epoch, producer.sent, producer.sequences = epoch, {}, {}
            producer.sequences[index] = (sequence + shape.count) % 2**31
            producer.sent.setdefault(index, []).append((shape, epoch, sequence))
        self._note_ends(answer, {index: 0 if odd == "again" else shape.count})

    async def init_producer(self) -> None:
        """InitProducerId without a transaction."""
        given = self.chance.choice(((-1, -1), (-1, -1), (5, 0), (5, -1), (-1, 0)))
        await self.talk.ask(
            22, self.chance.randint(0, 5), transactional_id=None, producer_id=given[0], producer_epoch=given[1],
            transaction_timeout=self.chance.choice((60_000, 0, -1)),
        )  # fmt: skip

    # -- readers

    def _offset(self, index: int) -> int:
        return self.chance.choice((0, 0, self.chance.randint(0, self.ends[index] + 1), self.ends[index], -1))

    async def fetch(self) -> None:
        """Some partitions from somewhere, with or without limits."""
        chance = self.chance
        indexes = chance.sample(range(self.partition_count), chance.randint(1, self.partition_count))
        limits = {"max_bytes": chance.choice((1 << 22, 1 << 22, 1, 100, 300))}
        await self.talk.fetch(
            self.topic, {index: self._offset(index) for index in indexes}, chance.randint(4, 18),
            partition={"partition_max_bytes": chance.choice((1 << 20, 1 << 20, 1, 150))},
            isolation_level=chance.choice((0, 1)), **limits,
        )  # fmt: skip

    async def fetch_oddly(self) -> None:
        """Epochs, partitions, limits and levels that are not there."""
        chance, index = self.chance, self.index
        version = chance.randint(4, 18)
        odd = chance.choice(("epoch", "last epoch", "partition", "limit", "level", "session", "replica", "topic"))
        offsets = {index: self._offset(index)}
        if odd == "epoch":
            await self.talk.fetch(
                self.topic, offsets, version, partition={"current_leader_epoch": chance.choice((0, 1, 7))}
            )
        elif odd == "last epoch":
            await self.talk.fetch(
                self.topic, offsets, version, partition={"last_fetched_epoch": chance.choice((0, 1, 7))}
            )
        elif odd == "partition":
            await self.talk.fetch(self.topic, {**offsets, self.partition_count: 0}, version)
        elif odd == "topic":
            await self.talk.fetch("nobody-made-this", {0: 0}, min(version, 12))
        elif odd == "limit":
            await self.talk.fetch(self.topic, offsets, version, note=odd, partition={"partition_max_bytes": -1})
        elif odd == "level":
            await self.talk.fetch(self.topic, offsets, version, note=odd, isolation_level=2)
        elif odd == "replica":
            await self.talk.fetch(self.topic, offsets, min(version, 14), note=odd, replica_id=5)
        else:
            session = chance.choice(((0, 3), (123_456, 1), (123_456, -1)))
            await self.talk.fetch(self.topic, offsets, max(version, 7), session=session)

    async def fetch_in_session(self) -> None:
        """The next step of a fetch session; all at one connection, with records that are produced there too."""
        chance = self.chance
        index = self.index
        if not self.session_epoch or chance.random() < 0.1:
            self.by_id = chance.random() < 0.5
            offsets = {one: chance.choice((0, self.ends[one])) for one in range(self.partition_count)}
            await self._session_step(0, offsets)
            return
        odd = chance.choices(["", "produce", "move", "forget", "epoch", "mixed", "end"], [3, 3, 3, 1, 0.5, 0.3, 0.2])[0]
        if odd == "produce":
            shape = log_batches.good(chance, keyed=True)
            answer = await self.talk.produce(self.topic, {index: shape.bytes_of()}, 9, actor="session")
            self._note_ends(answer, {index: shape.count})
        epoch = self.session_epoch + (chance.choice((1, -1)) if odd == "epoch" else 0)
        moved = {index: chance.choice((self.ends[index], self.ends[index], 0, self.ends[index] + 3))}
        forgotten = [index] if odd == "forget" else []
        await self._session_step(
            -1 if odd == "end" else epoch, moved if odd == "move" else {}, forgotten, odd == "mixed"
        )

    async def _session_step(
        self, epoch: int, offsets: dict[int, int], forgotten: list[int] | None = None, mixed: bool = False
    ) -> None:
        version = self.chance.randint(13, 18) if self.by_id != mixed else self.chance.randint(7, 12)
        label = self.talk.labelled(self.topic, version >= 13, "topic")
        session = (lambda target: self.talk.sessions.get(target.name, 0)), epoch
        answer = await self.talk.fetch(
            self.topic, offsets, version, "session", session=session,
            forgotten_topics_data=[{**label, "partitions": tuple(forgotten)}] if forgotten else [],
        )  # fmt: skip
        if answer["error_code"] == "none":
            self.session_epoch = 0 if not answer["session_id"] else max(epoch, 0) + 1

    async def list_offsets(self) -> None:
        """Positions by time, and the special ones."""
        chance = self.chance
        indexes = chance.sample(range(self.partition_count), chance.randint(1, self.partition_count))
        some = (*_SPECIAL, 0, RECORD_TIME + chance.randrange(-100, 10_100), RECORD_TIME + 5_000, RECORD_TIME + 10**6)
        await self.talk.list_offsets(
            self.topic, {index: chance.choice(some) for index in [*indexes, *([9] if chance.random() < 0.1 else [])]},
            chance.randint(1, 11), isolation=chance.choice((0, 0, 1)), epoch=chance.choice((-1, -1, -1, 0, 1, -2)),
        )  # fmt: skip

    async def leader_epoch(self) -> None:
        """OffsetForLeaderEpoch."""
        chance = self.chance
        epochs = {
            "current_leader_epoch": chance.choice((-1, -1, 0, 1, -2)),
            "leader_epoch": chance.choice((0, 0, 1, -1, -2)),
        }
        partitions = [{"partition": chance.choice((self.index, 9)), **epochs}]
        topics = [{"topic": chance.choice((self.topic,) * 6 + ("nobody-made-this",)), "partitions": partitions}]
        await self.talk.ask(23, chance.randint(2, 4), replica_id=-2, topics=topics)

    async def producers_of(self) -> None:
        """DescribeProducers."""
        await self.talk.describe_producers(self.topic, (self.index, *self.chance.choice(((), (), (9,)))))

    # -- administrators

    async def delete_records(self) -> None:
        """DeleteRecords up to some offset."""
        chance, index = self.chance, self.chance.choice((*range(self.partition_count), *range(self.partition_count), 9))
        end = self.ends.get(index, 0)
        offset = chance.choice((-1, -2, 0, chance.randint(0, end), chance.randint(0, end), end, end + 1, 10**6))
        name = chance.choice((self.topic,) * 8 + ("nobody-made-this", "__consumer_offsets"))
        index = 0 if name == "__consumer_offsets" else index
        topics = [{"name": name, "partitions": [{"partition_index": index, "offset": offset}]}]
        await self.talk.ask(21, chance.randint(0, 2), topics=topics, timeout=30_000)

    async def configure(self) -> None:
        """Another config of the topic."""
        configs = self.chance.choice(_CONFIGS)
        if configs:
            await self.talk.alter(self.topic, **configs)
            self.keyed = self.keyed or _COMPACTED in configs.get("cleanup_policy", "")

    async def more_partitions(self) -> None:
        """CreatePartitions, one more; the log goes on."""
        await self.talk.ask(
            37, self.chance.randint(0, 3), validate_only=False, timeout=30_000,
            topics=[{"name": self.topic, "count": self.partition_count + 1, "assignments": None}],
        )  # fmt: skip
        self.ends[self.partition_count] = 0
        self.partition_count += 1
        wanted = self.partition_count
        await self.talk.each(
            lambda found: [one.leader_id >= 0 for one in found.topics[0].partitions] == [True] * wanted,
            3, 12, topics=[{"topic_id": None, "name": self.topic}], allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
