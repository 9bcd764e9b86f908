"""Random conversations about topics: made, grown, configured, described and deleted, right and wrong steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tests.conformance.differential.log_conversation import Conversation

_STEPS: Final = (20, 40)
_TOPIC, _SET, _DELETE, _APPEND, _SUBTRACT = 2, 0, 1, 2, 3
_NOWHERE: Final = UUID("7f1e6c52-9d0b-4a3e-8a55-0c2f6f0d9b11")
_VALUES: Final = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "", "none", None),
    "retention.ms": ("-1", "1000", "-2", "many", " 5000 ", None),
    "retention.bytes": ("-1", "-2", "1.5"),
    "max.message.bytes": ("0", "1000", "-1", "2147483648"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime", ""),
    "message.timestamp.before.max.ms": ("0", "1000", "-1"),
    "message.timestamp.after.max.ms": ("0", "1000", "-1"),
    "compression.type": ("producer", "gzip", "zstd", "uncompressed", "none", "lz5"),
    "compression.gzip.level": ("-1", "9", "0", "10"),
    "compression.zstd.level": ("3", "-7", "23"),
    "compression.lz4.level": ("9", "0", "18"),
    "max.decompressed.message.bytes": ("1", "0", "1000"),
    "min.insync.replicas": ("1", "2", "0"),
    "min.compaction.lag.ms": ("0", "1000", "-1"),
    "max.compaction.lag.ms": ("1", "500", "0"),
    "min.cleanable.dirty.ratio": ("0.1", "1", "1.5", "-0.1", "half"),
    "delete.retention.ms": ("0", "1000", "-1"),
    "segment.bytes": ("1048576", "1000", "many"),
    "segment.ms": ("1", "0"),
    "file.delete.delay.ms": ("0", "-1"),
    "unclean.leader.election.enable": ("TRUE", "yes"),
    "preallocate": ("true", "no"),
    "index.interval.bytes": ("0", "-1"),
    "flush.messages": ("1", "0"),
    "remote.storage.enable": ("true", "false"),
    "leader.replication.throttled.replicas": ("*", "0:1", "x"),
    "message.format.version": ("3.0",),
    "message.downconversion.enable": ("true",),
    "foo": ("bar", None),
    "": ("x",),
}
_NOTES: Final = {("segment.bytes", "1000"): "segments", ("retention.bytes", "-2"): "retention"}


def _note(resources: Sequence[Mapping[str, Any]]) -> str:
    """What allowed differences must know of a request."""
    values = {(one["name"], one["value"]) for each in resources for one in each["configs"]}
    return " ".join(note for value, note in _NOTES.items() if value in values)


async def topics_conversation(talk: Conversation) -> None:
    """An administrator's day."""
    walk = _Walk(talk)
    for _ in range(talk.chance.randint(*_STEPS)):
        await walk.step()
    await walk.describe_configs()


class _Walk:
    """Chooses each next step by chance."""

    def __init__(self, talk: Conversation) -> None:
        self.talk, self.chance = talk, talk.chance
        self.names = [f"{talk.group}-{name}" for name in ("a", "b", "b.c", "b_c")]

    async def step(self) -> None:
        """One step."""
        steps: list[tuple[Callable[[], Awaitable[Any]], float]] = [
            (self.create, 4), (self.delete, 1.5), (self.grow, 1.5), (self.describe_configs, 2), (self.alter, 3),
            (self.replace_configs, 1.5), (self.describe, 2), (self.metadata, 2),
        ]  # fmt: skip
        choices, weights = zip(*steps, strict=True)
        await self.chance.choices(choices, weights)[0]()

    @property
    def name(self) -> str:
        """Some topic's name, that may exist or not, mostly valid."""
        odd = ("bad/name", "", ".", "..", "x" * 250, "__cluster_metadata")
        return self.chance.choice(odd) if self.chance.random() < 0.08 else self.chance.choice(self.names)

    def _configs(self, count: int) -> list[dict[str, Any]]:
        keys = self.chance.choices(list(_VALUES), k=count)
        return [{"name": key, "value": self.chance.choice(_VALUES[key])} for key in keys]

    async def create(self) -> None:
        """CreateTopics of one or several."""
        chance = self.chance
        names = [self.name for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        topics = []
        for name in names:
            assigned = chance.random() < 0.12
            replicas = chance.choice(((1,), (1,), (1,), (1, 1), (), (7,)))
            indexes = chance.choice(((0, 1), (0, 1), (1,), (0, 0)))
            count = -1 if assigned and chance.random() < 0.7 else chance.choice((1, 1, 2, 3, -1, 0, -2, 10_001))
            assignments = [{"partition_index": one, "broker_ids": replicas} for one in indexes] if assigned else []
            topics.append({
                "name": name, "num_partitions": count, "assignments": assignments,
                "replication_factor": -1 if count == -1 else chance.choice((1, 1, 1, 1, -1, 0, -2, 4)),
                "configs": self._configs(chance.choice((0, 1, 1, 2))),
            })  # fmt: skip
        version = chance.choice((2, 4, 5, 6, 7, 7, 7))
        validate_only = chance.random() < 0.15
        await self.talk.ask(19, version, note=_note(topics), topics=topics, timeout=30_000, validate_only=validate_only)
        if version < 7:  # whose answers have no ids
            await self.describe(names)

    async def delete(self) -> None:
        """DeleteTopics by name or id."""
        chance = self.chance
        version, names = chance.randint(1, 6), [self.name for _ in range(chance.choice((1, 1, 2)))]
        if version < 6:
            await self.talk.ask(20, version, topic_names=tuple(names), timeout=30_000)
            return
        topics = [
            chance.choice([
                {"name": name, "topic_id": None},
                {"name": None, "topic_id": self._id_of(name)},
                {"name": None, "topic_id": _NOWHERE},
                {"name": name, "topic_id": self._id_of(name)},
                {"name": None, "topic_id": None},
            ])
            for name in names
        ]  # fmt: skip
        await self.talk.ask(20, version, topics=topics, timeout=30_000)

    def _id_of(self, name: str) -> Any:
        return lambda target: target.topics.get(name, _NOWHERE)

    async def grow(self) -> None:
        """CreatePartitions."""
        chance = self.chance
        topics = []
        for _ in range(chance.choice((1, 1, 2))):
            assigned = [[{"broker_ids": (one,)} for one in chance.choice(((1,), (1, 1), (7,), ()))], None, None, None]
            count = chance.choice((1, 2, 3, 4, 5, 0, -1, 20_000))
            topics.append({"name": self.name, "count": count, "assignments": chance.choice(assigned)})
        await self.talk.ask(
            37, chance.randint(0, 3), topics=topics, timeout=30_000, validate_only=chance.random() < 0.2
        )

    async def describe_configs(self) -> None:
        """DescribeConfigs, of all or some keys."""
        keys = self.chance.choice((None, None, (), ("retention.ms", "foo", "cleanup.policy")))
        resources = [{"resource_type": _TOPIC, "resource_name": self.name, "configuration_keys": keys}]
        await self.talk.ask(
            32, self.chance.randint(1, 4), resources=resources, include_synonyms=self.chance.random() < 0.5,
            include_documentation=False,
        )  # fmt: skip

    async def alter(self) -> None:
        """IncrementalAlterConfigs."""
        chance = self.chance
        operations = (_SET, _SET, _SET, _DELETE, _APPEND, _SUBTRACT)
        resources = []
        for _ in range(chance.choice((1, 1, 1, 2))):
            configs = self._configs(chance.choice((1, 1, 2)))
            altered = [{**one, "config_operation": chance.choice(operations)} for one in configs]
            resources.append({"resource_type": _TOPIC, "resource_name": self.name, "configs": altered})
        version, validate_only = chance.randint(0, 1), chance.random() < 0.15
        await self.talk.ask(44, version, note=_note(resources), resources=resources, validate_only=validate_only)

    async def replace_configs(self) -> None:
        """AlterConfigs."""
        configs = self._configs(self.chance.choice((0, 1, 2)))
        resources = [{"resource_type": _TOPIC, "resource_name": self.name, "configs": configs}]
        await self.talk.ask(
            33,
            self.chance.randint(0, 2),
            note=_note(resources),
            resources=resources,
            validate_only=self.chance.random() < 0.15,
        )

    async def describe(self, names: Sequence[str] = ()) -> None:
        """DescribeTopicPartitions, of these or any topics."""
        chance = self.chance
        if names:
            topics = [{"name": name} for name in names]
            await self.talk.ask(75, 0, topics=topics, cursor=None, response_partition_limit=2_000)
            return
        names = [self.name for _ in range(chance.randint(1, 4))]
        place = {"topic_name": chance.choice(names), "partition_index": chance.choice((0, 1, 9, -1))}
        cursor = chance.choice((None, None, None, place))
        await self.talk.ask(
            75, 0, topics=[{"name": name} for name in names], cursor=cursor,
            response_partition_limit=chance.choice((2_000, 2_000, 1, 3, 0, -1)),
        )  # fmt: skip

    async def metadata(self) -> None:
        """Metadata by name or id."""
        chance, name = self.chance, self.name
        version = chance.randint(4, 13)  # older ones make the topic
        topics: list[dict[str, Any]] = [{"topic_id": None, "name": name}]
        if version >= 12 and chance.random() < 0.4:
            topics = [{"topic_id": chance.choice((self._id_of(name), _NOWHERE)), "name": None}]
        await self.talk.ask(
            3, version, topics=topics, allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=chance.random() < 0.3,
        )  # fmt: skip
