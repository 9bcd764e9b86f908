"""Random conversations about transactions: producers of both protocols, right and wrong steps, readers, inspection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.conformance.differential import log_batches
from tests.conformance.differential.lockstep import Ended
from tests.conformance.differential.log_batches import Shape
from tests.conformance.differential.log_conversation import Conversation, only

_STEPS: Final = (25, 50)
_TIMEOUT_MS: Final = 60_000
_SHORT_MS: Final = 1_000
_V1: Final = {"init": (0, 4), "produce": (3, 11), "offsets": (0, 4), "end": (0, 4)}
_V2: Final = {"init": (3, 5), "produce": (12, 13), "offsets": (5, 6), "end": (5, 5)}
"""First and last versions that clients of each protocol send."""


async def transactions_conversation(talk: Conversation) -> None:
    """Producers write, commit and abort; readers of both isolation levels read along."""
    walk = _Walk(talk)
    await talk.topics({walk.topic: walk.partition_count, walk.other: 1})
    for client in walk.clients:
        await walk.init(client)
    for _ in range(talk.chance.randint(*_STEPS)):
        await walk.step()
    if talk.chance.random() < 0.3:
        await walk.time_out(talk.chance.choice(walk.clients))
    for client in walk.clients:
        await walk.end(client)
    await walk.fetch(whole=True)
    await talk.describe_producers(walk.topic, range(walk.partition_count))
    await walk.offsets()


class _Client:
    """One transactional id, and its producer as the last answer of the coordinator left it."""

    def __init__(self, transactional_id: str, versions: dict[str, tuple[int, int]]) -> None:
        self.id, self.versions = transactional_id, versions
        self.producer, self.epoch = "nobody", 0
        self.sequences: dict[int, int] = {}
        self.sent: dict[int, list[tuple[Shape, int, int]]] = {}
        self.added: set[int] = set()
        self.has_group = False
        self.is_open = False
        self.ended: tuple[int, dict[str, Any]] | None = None

    @property
    def identity(self) -> tuple[str, int]:
        """The producer and its epoch."""
        return self.producer, self.epoch

    def begin(self, producer: str, epoch: int) -> None:
        """The producer, its sequences from 0 where it is a new one or has a new epoch."""
        if (producer, epoch) != self.identity:
            self.sequences = {}
        self.sent = {}
        self.producer, self.epoch = producer, epoch
        self.added, self.has_group, self.is_open = set(), False, False


class _Walk:
    """Chooses each next step by chance, and by the answers of Kafka."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.chance = talk, talk.chance
        self.topic, self.other, self.partition_count = (
            f"{talk.group}-log",
            f"{talk.group}-other",
            talk.chance.randint(1, 2),
        )
        self.clients = [
            _Client(f"{talk.group}-{number}", self.chance.choice((_V1, _V2)))
            for number in range(self.chance.randint(1, 3))
        ]
        self.end_offset = 0

    async def step(self) -> None:
        """One step of one producer, a reader or an administrator."""
        client = self.chance.choice(self.clients)
        steps: list[tuple[Callable[[], Awaitable[Any]], float]] = [
            (lambda: self.produce(client), 5), (lambda: self.add(client), 2), (lambda: self.end(client), 3),
            (lambda: self.init(client), 0.6), (lambda: self.add_offsets(client), 1), (self.fetch, 2),
            (lambda: self.plain(client), 0.7), (lambda: self.commit_offsets(client), 2), (self.list_offsets, 1),
            (lambda: self.describe(client), 1), (self.list, 0.7), (self.producers, 1), (lambda: self.mark(client), 0.3),
            (self.offsets, 1), (self.commit_plainly, 0.4), (self.delete_records, 0.2),
            (lambda: self.swap_protocol(client), 0.2), (lambda: self.end_again(client), 0.7),
        ]  # fmt: skip
        choices, weights = zip(*steps, strict=True)
        await self.chance.choices(choices, weights)[0]()

    def _version(self, client: _Client, of: str) -> int:
        return self.chance.randint(*client.versions[of])

    @property
    def index(self) -> int:
        """Some partition."""
        return self.chance.randrange(self.partition_count)

    def _identity(self, client: _Client) -> tuple[str, int]:
        """The producer and its epoch; now and then another one."""
        odd = self.chance.random()
        if odd < 0.04:
            return client.producer, client.epoch + 1
        if odd < 0.08 and client.epoch:
            return client.producer, client.epoch - 1
        if odd < 0.1:
            return "nobody", client.epoch
        return client.identity

    def _asked(self, client: _Client, identity: tuple[str, int] | None = None) -> dict[str, Any]:
        producer, epoch = identity or self._identity(client)
        name = client.id if self.chance.random() > 0.02 else self.chance.choice(("", f"{self.talk.group}-unknown"))
        return {"transactional_id": name, "producer_id": self.talk.producer(producer), "producer_epoch": epoch}

    async def swap_protocol(self, client: _Client) -> None:
        """The client begins to use the other protocol, in the middle of a transaction too."""
        client.versions = _V1 if client.versions is _V2 else _V2

    async def completed(self, client: _Client) -> None:
        """Wait until both have written the markers of what was decided."""
        await self.talk.each(
            lambda found: not found.transaction_states[0].transaction_state.startswith("Prepare"),
            65, 0, transactional_ids=(client.id,),
        )  # fmt: skip

    # -- producers

    async def init(self, client: _Client, timeout_ms: int = 0) -> None:
        """InitProducerId: a new process, or one that goes on after an error."""
        chance = self.chance
        version = self._version(client, "init")
        given: tuple[Any, int] = (-1, -1)
        other = False
        if version >= 3 and client.producer != "nobody" and not timeout_ms and chance.random() < 0.5:
            epoch = client.epoch + chance.choice((0, 0, 0, -1, 1, -2))
            given = (self.talk.producer(chance.choice((client.producer,) * 9 + ("nobody",))), max(epoch, -1))
            other = client.is_open and given[1] != client.epoch
        odd = (0, -1, 900_001)
        timeout_ms = timeout_ms or chance.choice((_TIMEOUT_MS,) * 15 + odd)
        name = client.id if timeout_ms == _SHORT_MS or chance.random() > 0.03 else ""
        answer = await self.talk.ask(
            22,
            version,
            note="other epoch" if other else "",
            transactional_id=name,
            transaction_timeout=timeout_ms,
            producer_id=given[0],
            producer_epoch=given[1],
        )
        await self.completed(client)
        if other:
            raise Ended  # Kafka has aborted the transaction
        if answer["error_code"] == "none":
            client.begin(answer["producer_id"], answer["producer_epoch"])

    async def add(self, client: _Client) -> None:
        """AddPartitionsToTxn, of clients and of brokers."""
        chance = self.chance
        indexes = {self.index, self.index}
        topics = [
            {"name": self.topic, "partitions": tuple(sorted(indexes | ({9} if chance.random() < 0.1 else set())))}
        ]
        if chance.random() < 0.1:
            topics.append({"name": "nobody-made-this", "partitions": (0,)})
        asked = self._asked(client)
        if chance.random() < 0.12:
            one = {**asked, "verify_only": chance.random() < 0.5, "topics": topics}
            answer = await self.talk.ask(24, chance.choice((4, 5)), transactions=[one])
            found, is_added = answer["results_by_transaction"][0]["topic_results"], not one["verify_only"]
        else:
            own = {f"v3_and_below_{name}": value for name, value in asked.items()}
            answer = await self.talk.ask(24, chance.randint(0, 3), v3_and_below_topics=topics, **own)
            found, is_added = answer["results_by_topic_v3_and_below"], True
        codes = {one["partition_error_code"] for topic in found for one in topic["results_by_partition"]}
        if codes == {"none"} and is_added:
            client.added |= indexes
            client.is_open = True

    async def produce(self, client: _Client) -> None:
        """A transactional batch: the next one mostly."""
        chance, index, version = self.chance, self.index, self._version(client, "produce")
        if version < 12 and index not in client.added and chance.random() < 0.8:
            await self.add(client)
        producer, epoch = self._identity(client)
        shape, sequence = log_batches.good(chance), client.sequences.get(index, 0)
        name = chance.choice((client.id,) * 30 + (None, "", f"{self.talk.group}-unknown"))
        is_open = client.is_open and index in client.added
        is_plain = (producer, epoch) == client.identity and name == client.id
        odd = chance.choices(["", "again", "gap"], [8, 1, 0.6])[0] if is_open and is_plain else ""
        sent = client.sent.get(index, [])
        if odd == "again" and sent:
            shape, epoch, sequence = chance.choice(sent[-3:])
        elif odd == "again":
            odd = ""
        elif odd == "gap":
            sequence += chance.randint(1, 3)
        odd = "no id" if name == "" and is_open else odd
        raw = self.talk.batch(shape, producer, epoch, sequence, transactional=True)
        answer = await self.talk.produce(
            self.topic, {index: raw}, version, note=odd, actor=client.id, transactional_id=name
        )
        found = only(answer, "responses", "partition_responses")
        if found["error_code"] == "none":
            self.end_offset = max(self.end_offset, found["base_offset"] + shape.count)
            client.is_open = True
            client.added.add(index)
            if odd != "again":
                client.sequences[index] = sequence + shape.count
                client.sent.setdefault(index, []).append((shape, epoch, sequence))

    async def plain(self, client: _Client) -> None:
        """A batch without a transaction, of nobody or of a producer that has one."""
        chance, index = self.chance, self.index
        shape, sequence = log_batches.good(chance), client.sequences.get(index, 0)
        raw = shape.bytes_of()
        if own := chance.random() < 0.5:
            raw = self.talk.batch(shape, client.producer, client.epoch, sequence)
        answer = await self.talk.produce(self.topic, {index: raw}, chance.randint(3, 13), actor=client.id)
        found = only(answer, "responses", "partition_responses")
        if found["error_code"] == "none":
            self.end_offset = max(self.end_offset, found["base_offset"] + shape.count)
            if own:
                client.sequences[index] = sequence + shape.count

    async def end(self, client: _Client) -> None:
        """EndTxn, and the wait for its markers."""
        version = self._version(client, "end")
        asked = {**self._asked(client), "committed": self.chance.random() < 0.6}
        answer = await self.talk.ask(26, version, client.id, **asked)
        await self.completed(client)
        client.ended = version, asked
        if answer["error_code"] == "none":
            bumped = answer.get("producer_epoch", -1) >= 0
            client.begin(
                *((answer["producer_id"], answer["producer_epoch"]) if bumped else (client.producer, client.epoch))
            )

    async def end_again(self, client: _Client) -> None:
        """The last EndTxn once more, whose answer was lost; or with the opposite decision."""
        if client.ended is None:
            return
        version, asked = client.ended
        if self.chance.random() < 0.3:
            asked = {**asked, "committed": not asked["committed"]}
        answer = await self.talk.ask(26, version, client.id, **asked)
        await self.completed(client)
        if answer["error_code"] == "none" and answer.get("producer_epoch", -1) >= 0:
            client.begin(answer["producer_id"], answer["producer_epoch"])

    async def time_out(self, client: _Client) -> None:
        """A transaction that its producer forgets, and what the producer learns."""
        await self.init(client, _SHORT_MS)
        while not client.is_open:
            await self.produce(client)
        await self.talk.each(
            lambda found: found.transaction_states[0].transaction_state != "Ongoing",
            65,
            0,
            transactional_ids=(client.id,),
        )
        await self.completed(client)
        await self.describe(client)
        await self.fetch(whole=True)
        for step in self.chance.sample((self.add, self.produce, self.end, self.init), 4):
            await step(client)

    # -- offsets in transactions

    async def add_offsets(self, client: _Client) -> None:
        """AddOffsetsToTxn."""
        answer = await self.talk.ask(25, self.chance.randint(0, 4), client.id, **self._asked(client))
        if answer["error_code"] == "none":
            client.has_group = client.is_open = True

    async def commit_offsets(self, client: _Client) -> None:
        """TxnOffsetCommit."""
        chance, version = self.chance, self._version(client, "offsets")
        if version < 5 and not client.has_group and chance.random() < 0.8:
            await self.add_offsets(client)
        member = chance.choices([("", -1), ("m", 3), ("m", -1), ("", 3)], [12, 1, 1, 1])[0]
        indexes = {self.index} | ({9} if chance.random() < 0.08 else set())
        partitions = [self._offset(index) for index in sorted(indexes)]
        topics = [{**self.talk.labelled(self.topic, version >= 6), "partitions": partitions}]
        asked = self._asked(client)
        note = "other id" if asked["transactional_id"] != client.id and client.has_group else ""
        answer = await self.talk.ask(
            28, version, client.id, note, topics=topics, member_id=member[0], generation_id=member[1],
            group_instance_id=None, **({"group_id": ""} if chance.random() < 0.03 else {}), **asked,
        )  # fmt: skip
        codes = {one["error_code"] for topic in answer["topics"] for one in topic["partitions"]}
        if version >= 5 and "none" in codes:
            client.has_group = client.is_open = True

    def _offset(self, index: int) -> dict[str, Any]:
        metadata = self.chance.choice(("", "x", None, "x" * 5_000)) if self.chance.random() < 0.2 else "m"
        offset = {"partition_index": index, "committed_offset": self.chance.randrange(100)}
        return offset | {"committed_leader_epoch": self.chance.choice((-1, 0)), "committed_metadata": metadata}

    async def commit_plainly(self) -> None:
        """OffsetCommit beside the transactions."""
        topics = [{"name": self.topic, "partitions": [self._offset(self.index)]}]
        await self.talk.ask(
            8, self.chance.randint(2, 9), generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            retention_time=-1, topics=topics,
        )  # fmt: skip

    async def offsets(self) -> None:
        """OffsetFetch, with and without what is pending."""
        topics = [{"name": self.topic, "partition_indexes": tuple(range(self.partition_count))}]
        group = {"group_id": self.talk.group, "member_id": None, "member_epoch": -1, "topics": topics}
        version = self.chance.choice((7, 8, 9))
        await self.talk.ask(9, version, groups=[group], topics=topics, require_stable=self.chance.random() < 0.6)

    # -- readers and administrators

    async def fetch(self, whole: bool = False) -> None:
        """Fetch at either isolation level."""
        chance = self.chance
        offset = 0 if whole else chance.choice((0, chance.randint(0, self.end_offset)))
        offsets = dict.fromkeys(range(self.partition_count), offset)
        await self.talk.fetch(self.topic, offsets, chance.randint(4, 18), isolation_level=chance.choice((0, 1, 1)))

    async def list_offsets(self) -> None:
        """The ends and the times that a reader of an isolation level may know of."""
        time = self.chance.choice((-1, -1, -2, -3, log_batches.RECORD_TIME + self.chance.randrange(10_000)))
        await self.talk.list_offsets(
            self.topic, {self.index: time}, self.chance.randint(7, 11), self.chance.choice((0, 1, 1))
        )

    async def producers(self) -> None:
        """DescribeProducers."""
        await self.talk.describe_producers(self.topic, range(self.partition_count))

    async def describe(self, client: _Client) -> None:
        """DescribeTransactions."""
        odd = self.chance.choice(((), (), (), ("",), (f"{self.talk.group}-unknown",)))
        await self.talk.ask(65, 0, transactional_ids=(client.id, *odd))

    async def list(self) -> None:
        """ListTransactions of this conversation's ids."""
        chance, group = self.chance, self.talk.group
        pattern = chance.choice((f"{group}.*",) * 4 + (f"{group}-1", group, "("))
        states = chance.choice(
            ((), (), ("Ongoing",), ("Empty", "CompleteCommit"), ("CompleteAbort", "ongoing"), ("Bogus",))
        )
        ids = chance.choice(((), (), (self.talk.producer(chance.choice(self.clients).producer),)))
        await self.talk.ask(
            66, chance.randint(0, 2) if ids else 2, state_filters=states, producer_id_filters=ids,
            duration_filter=chance.choice((-1, -1, 10**8)), transactional_id_pattern=pattern,
        )  # fmt: skip

    async def mark(self, client: _Client) -> None:
        """WriteTxnMarkers, of an administrator, for a producer that has no transaction, or an older epoch."""
        if client.is_open and client.epoch == 0:
            return
        epoch = client.epoch - 1 if client.is_open else client.epoch
        # a newer coordinator epoch would keep Kafka's coordinator from ending the next transaction
        marker = {
            "producer_id": self.talk.producer(client.producer), "producer_epoch": epoch,
            "transaction_result": self.chance.random() < 0.3, "coordinator_epoch": self.chance.choice((0, 0, -1)),
            "transaction_version": self.chance.choice((0, 2)),
            "topics": [{"name": self.topic, "partition_indexes": (self.index, *self.chance.choice(((), (), (9,))))}],
        }  # fmt: skip
        await self.talk.ask(27, self.chance.choice((1, 2)), markers=[marker])

    async def delete_records(self) -> None:
        """DeleteRecords, under transactions too."""
        offset = self.chance.choice((-1, self.chance.randint(0, self.end_offset)))
        topics = [{"name": self.topic, "partitions": [{"partition_index": self.index, "offset": offset}]}]
        await self.talk.ask(21, 2, topics=topics, timeout=30_000)
