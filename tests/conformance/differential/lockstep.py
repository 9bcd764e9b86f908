"""Conversations held with both targets in step: each step is one request to both, and the comparison of two answers.

That suits groups whose members have epochs (KIP-848, KIP-932, KIP-1071), for nothing is parked in them and clients
choose their member ids, and the log with its transactions. A difference that no rule of the kind's names ends the
conversation.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

from bench.cluster import CONNECTIONS_STAY, Cluster
from bench.kafka_peer import KafkaPeer
from tests.conformance.differential.messages import PEER_VERSION, build
from tests.conformance.differential.observed import Allowed, Difference, Tally, compare
from tests.kit.wire import RawClient, request, request_of_version

TOPICS: Final = {"t4": 4, "t2": 2, "t1": 1}
"""The topics of every conversation, with their partitions."""
NOT_COMPARED: Final = frozenset({
    "error_message", "acknowledge_error_message", "batch_index_error_message", "throttle_time", "status_detail",
})  # fmt: skip
_ORDERED: Final = frozenset({"aborted_transactions"})
"""Arrays whose order is compared."""
_SHOWN_STEPS: Final = 14
_SHOWN_CHARACTERS: Final = 900
_WARM_S: Final = 60.0
_KINDS: Final = ("consumer", "share", "streams")
_KAFKA: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
    **{f"group.{kind}.assignment.interval.ms": "0" for kind in _KINDS},
    **{f"group.{kind}.assignor.offload.enable": "false" for kind in _KINDS},
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
_GROUP: Final = 32
"""A group as a resource with configs."""


@dataclass(frozen=True, slots=True)
class Target:
    """One system, and its topic ids."""

    name: str
    addresses: tuple[str, ...]
    topics: dict[str, UUID] = field(default_factory=dict)

    def name_of(self, topic_id: UUID | None) -> str:
        """A topic's name, or that the id is nobody's."""
        return next((name for name, one in self.topics.items() if one == topic_id), f"<{topic_id}>")


@dataclass(frozen=True, slots=True)
class Targets:
    """Kafka and Tidegate."""

    kafka: Target
    tidegate: Target

    def __iter__(self) -> Iterator[Target]:
        return iter((self.kafka, self.tidegate))


class Ended(Exception):
    """The groups are not alike any more: by an allowed difference that lasts, or by one that is not allowed."""


class Conversation:
    """One seed: a group, and what its members and an administrator ask both."""

    def __init__(self, kind: str, seed: int, targets: Targets, rules: Sequence[Allowed]) -> None:
        self.name, self.targets, self.rules = f"{kind} {seed}", targets, rules
        self.chance = random.Random(self.name)
        self.group = f"{kind}-{seed}-{uuid4().hex[:8]}"
        self.tally, self.found, self.allowed = Tally(), list[Difference](), Counter[str]()
        self.transcript: list[str] = []
        self.known: Any = None
        """What it knows of the group's state before each request, for allowed differences."""
        self.last: dict[str, Any] = {}
        """The last answer of each target, by its name."""
        self._clients: dict[str, tuple[RawClient, ...]] = {}

    async def ask(self, key: int, version: int, actor: str = "admin", note: str = "", **values: Any) -> Any:
        """Ask both; Kafka's answer with names for topic ids. Callable values are asked of each target.

        `note` says what allowed differences must know of the request. Raises Ended.
        """
        clients = await self.connected(actor)
        values = {"group_id": self.group, **values}
        plain = [resolved(values, target) for target in self.targets]
        requests = [request_of_version(key, version, **one) for one in plain]
        api = type(requests[0]).__name__.removesuffix("Request")
        await self.answered(api, clients, requests)
        kafka, tidegate = self.last.values()
        shown = named(plain[0], self.targets.kafka)
        self.transcript.append(f"{actor} -> {api} v{version} {_brief(shown)}\n    {_brief(kafka)}")
        self._judge(api, version, note, kafka, tidegate)
        return kafka

    async def answered(self, api: str, clients: Sequence[RawClient], requests: Sequence[Any]) -> None:
        """Send each target its request; `last` has the answers."""
        answers = await asyncio.gather(*(client.ask(one) for client, one in zip(clients, requests, strict=True)))
        pairs = zip(answers, self.targets, strict=True)
        self.last = {target.name: tree("", one, partial(self.leaf, target)) for one, target in pairs}

    def leaf(self, target: Target, name: str, value: Any) -> Any:
        """A field's value without what is the target's own."""
        return leaf(target, name, value)

    def find(self, difference: Difference) -> Allowed | None:
        """The rule that allows it, if any."""
        return next((rule for rule in self.rules if rule.matches(difference)), None)

    async def connected(self, actor: str) -> tuple[RawClient, ...]:
        if actor not in self._clients:
            addresses = [self.address(actor, one) for one in self.targets]
            self._clients[actor] = tuple([await RawClient.connect(address, actor) for address in addresses])
        return self._clients[actor]

    def _judge(self, api: str, version: int, note: str, kafka: Any, tidegate: Any) -> None:
        count, differences = self.unlike(api, version, note, kafka, tidegate)
        self.tally.steps += 1
        self.tally.fields += count
        self.tally.answers[f"{api} v{version}"] += 1
        self.tally.cases.add((self.name.split()[0], api, codes(kafka)))
        rules = [(one, self.find(one)) for one in differences]
        for rule in {rule for _, rule in rules if rule is not None}:
            self.allowed[rule.key] += 1
        lasting = any(rule is not None and rule.lasts for _, rule in rules)
        if not lasting:
            self.found += [one for one, rule in rules if rule is None]
        if self.found:
            self.transcript.append(f"    ... tidegate: {_brief(tidegate)}")
        if lasting or self.found:
            raise Ended

    def address(self, actor: str, target: Target) -> str:
        """The broker that an actor asks."""
        return self.chance.choice(target.addresses)

    def unlike(self, api: str, version: int, note: str, kafka: Any, tidegate: Any) -> tuple[int, list[Difference]]:
        """How many fields were compared, and those that differ."""
        count, unlike = compare(_counted(kafka), _counted(tidegate))
        step, whole = self.tally.steps + 1, (kafka, tidegate)
        return count, [
            Difference(self.name, step, api, version, *values, note, whole=whole, known=self.known) for values in unlike
        ]

    async def configure(self, **configs: str) -> None:
        """Set configs of the group, dots being underscores here."""
        settings = [
            {"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in configs.items()
        ]
        resource = {"resource_type": _GROUP, "resource_name": self.group, "configs": settings}
        await self.ask(44, 1, resources=[resource], validate_only=False)

    def shown(self) -> str:
        """What differs, after which requests."""
        return "\n  ".join([*map(str, self.found[:8]), *self.transcript[-_SHOWN_STEPS:]])

    async def close(self) -> None:
        """Close all connections."""
        for pair in self._clients.values():
            for client in pair:
                await client.close()


def resolved(value: Any, target: Target) -> Any:
    """The value as this target has it."""
    if callable(value):
        return value(target)
    if isinstance(value, Mapping):
        return {name: resolved(own, target) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolved(own, target) for own in value)
    return value


def named(value: Any, target: Target) -> Any:
    """A request with names for topic ids, without what is not set."""
    if isinstance(value, dict):
        return {name: named(own, target) for name, own in value.items() if own not in (None, -1)}
    if isinstance(value, list | tuple):
        return [named(one, target) for one in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return target.name_of(value) if isinstance(value, UUID) else value


def tree(name: str, value: Any, leaf_of: Callable[[str, Any], Any]) -> Any:
    """An answer as plain values; arrays whose order means nothing are sorted."""
    if is_dataclass(value):
        every = ((one.name, getattr(value, one.name)) for one in fields(value))
        return {one: tree(one, own, leaf_of) for one, own in every if one not in NOT_COMPARED}
    if isinstance(value, tuple):
        shown = [tree(name, one, leaf_of) for one in value]
        return shown if name in _ORDERED else sorted((one for one in shown if not _has_no_news(one)), key=repr)
    return leaf_of(name, value)


def leaf(target: Target, name: str, value: Any) -> Any:
    """A value by a name that both targets share."""
    if name == "topic_id":
        return target.name_of(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    return f"{len(value)} bytes" if isinstance(value, bytes | bytearray | memoryview) else value


def _counted(tree: Any) -> Any:
    """The tree with numbers of tasks, for of equal ones Kafka's assignor moves any; and acquired records one by one."""
    if isinstance(tree, list):
        return [_counted(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    counted = {name: _counted(own) for name, own in tree.items()}
    for name in counted.keys() & {"active_tasks", "standby_tasks", "warmup_tasks"}:
        if tree[name] is not None:
            counted[name] = sum(len(task["partitions"]) for task in tree[name])
    if "acquired_records" in tree:
        counted["acquired_records"] = {
            str(offset): one["delivery_count"]
            for one in tree["acquired_records"]
            for offset in range(one["first_offset"], one["last_offset"] + 1)
        }
    return counted


def _has_no_news(one: Any) -> bool:
    """Whether it is a partition of a share fetch that had nothing, which Kafka names or not by the way it waited."""
    if not isinstance(one, dict):
        return False
    if one.keys() >= {"acquired_records", "acknowledge_error_code"}:
        return not one["acquired_records"] and one["error_code"] == "none" and one["acknowledge_error_code"] == 0
    return one.keys() == {"topic_id", "partitions"} and one["partitions"] == []


def codes(tree: Any) -> str:
    """All error codes of an answer."""
    if isinstance(tree, dict):
        own = {str(value) for name, value in tree.items() if name.endswith("error_code")}
        inner = {code for value in tree.values() for code in codes(value).split("+")}
        return "+".join(sorted((own | inner) - {""}))
    return "+".join(sorted({code for one in tree for code in codes(one).split("+")})) if isinstance(tree, list) else ""


def _brief(value: Any) -> str:
    return str(value)[:_SHOWN_CHARACTERS]


# -- the targets


@contextmanager
def running() -> Iterator[Targets]:
    """One Kafka and two brokers of Tidegate, warm. Raises PeerUnavailable where Kafka cannot be had."""
    with KafkaPeer(_KAFKA, PEER_VERSION) as kafka, Cluster(brokers=2, constants=CONNECTIONS_STAY) as cluster:
        targets = Targets(
            Target("kafka", (kafka.bootstrap,)), Target("tidegate", tuple(one.address for one in cluster.brokers))
        )
        asyncio.run(_warm(targets))
        yield targets


async def _warm(targets: Targets) -> None:
    """Make the topics; wait until Kafka's coordinators of groups and of share-partitions have loaded."""
    await make_topics(targets, TOPICS)
    share_partition = f"warm:{base64.urlsafe_b64encode(targets.kafka.topics['t1'].bytes).decode().rstrip('=')}:0"
    async with await RawClient.connect(targets.kafka.addresses[0]) as client, asyncio.timeout(_WARM_S):
        for key_type, key in ((0, "warm"), (1, "warm"), (2, share_partition)):
            found = build("FindCoordinator", 6, {"key_type": key_type, "coordinator_keys": (key,)})
            await _until(client, found, lambda answer: answer.coordinators[0].error_code.name == "none")
        fetch = build("OffsetFetch", 5, {"group_id": "warm", "topics": []})
        await _until(client, fetch, lambda answer: answer.error_code.name == "none")
    init = request(22, 4, transactional_id=None, transaction_timeout=1_000, producer_id=-1, producer_epoch=-1)
    for target in targets:  # answers without a producer have the id 0, so nobody has it
        async with await RawClient.connect(target.addresses[0]) as client, asyncio.timeout(_WARM_S):
            await _until(client, init, lambda answer: answer.producer_id >= 0)


async def _until(client: RawClient, request: Any, is_good: Callable[[Any], bool]) -> None:
    while not is_good(await client.ask(request, _WARM_S)):
        await asyncio.sleep(0.2)


async def make_topics(targets: Targets, topics: Mapping[str, int]) -> None:
    """Make topics at both, and wait until Metadata names them with their ids and leaders."""
    wanted = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in topics.items()
    ]
    create = request(19, 7, topics=wanted, timeout=30_000, validate_only=False)
    names = [{"topic_id": None, "name": name} for name in topics]
    metadata = request(3, 12, topics=names, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    for target in targets:
        async with await RawClient.connect(target.addresses[0]) as client, asyncio.timeout(_WARM_S):
            await client.ask(create, _WARM_S)
            while not topics.keys() <= target.topics.keys():
                for one in (await client.ask(metadata, _WARM_S)).topics:
                    led = [partition for partition in one.partitions if partition.leader_id >= 0]
                    if one.error_code.name == "none" and len(led) == topics[one.name]:
                        target.topics[one.name] = one.topic_id
                await asyncio.sleep(0.05)
