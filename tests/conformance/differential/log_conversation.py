"""Conversations about the log: producers, sessions and times by names that both targets share, records by content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from tests.conformance.differential import lockstep
from tests.conformance.differential.lockstep import Ended, Target, Targets, make_topics
from tests.conformance.differential.log_batches import RECENT, Shape, batches_in
from tests.conformance.differential.observed import CLOSED, Allowed, Difference
from tests.kit.wire import RawClient, request_of_version

_TIMES: Final = frozenset({
    "timestamp", "last_timestamp", "log_append_time", "transaction_start_time",
})  # fmt: skip
_NODES: Final = frozenset({"leader_id", "node_id", "controller_id", "replica_nodes", "isr_nodes"})
_PLACES: Final = frozenset({"host", "port", "rack", "cluster_id"})
_TRANSIENT: Final = frozenset({
    "concurrent_transactions", "coordinator_not_available", "coordinator_load_in_progress", "not_coordinator",
})  # fmt: skip
"""What a client repeats its request for."""
_READS: Final = frozenset({
    "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "DescribeProducers", "DescribeTransactions", "ListTransactions",
    "OffsetFetch", "Metadata", "DescribeTopicPartitions", "DescribeConfigs",
})  # fmt: skip
"""Repeated while the answers differ: what was written last may take a moment to be seen everywhere."""
_NEVER: Final = str(2**63 - 1)
"""Kafka reads within one segment, and rolls by the times of records: a marker of now behind old records ends one."""
_OF_THE_PEER: Final = "file.delete.delay.ms"
"""The config that `KafkaPeer` sets."""
_PATIENCE_S: Final = 2.0
_TRANSIENT_S: Final = 20.0
_PAUSE_S: Final = 0.02
ELSEWHERE: Final = "elsewhere"
"""Who asks another broker."""
_FETCH, _METADATA, _CREATE_TOPICS, _INIT_PRODUCER_ID, _END_TXN, _LIST_TRANSACTIONS = 1, 3, 19, 22, 26, 66
_DESCRIBE_TOPIC_PARTITIONS = 75


class Conversation(lockstep.Conversation):
    """One seed: topics of its own, and what clients ask of them."""

    def __init__(self, kind: str, seed: int, targets: Targets, rules: Sequence[Allowed]) -> None:
        own = Targets(*(replace(target, topics=dict(target.topics)) for target in targets))
        super().__init__(kind, seed, own, rules)
        self.last = {target.name: None for target in targets}
        self.sessions: dict[str, int] = {}
        """The fetch session of each target."""
        self._producers: dict[str, dict[int, str]] = {target.name: {} for target in targets}
        self._without_id: set[str] = set()
        """Topics that were made by a version of CreateTopics whose answer has no ids."""

    def address(self, actor: str, target: Target) -> str:
        """One broker for all but those elsewhere: another one learns of records only once it reads at its end."""
        first = int(self.name.split()[1]) % len(target.addresses)
        return target.addresses[first - 1 if actor == ELSEWHERE else first]

    # -- names

    def producer(self, name: str) -> Callable[[Target], int]:
        """The producer id that each target has for a name; 91 million where it has none."""
        return lambda target: next(
            (id_ for id_, own in self._producers[target.name].items() if own == name), 91_000_000
        )

    def leaf(self, target: Target, name: str, value: Any) -> Any:
        """A field's value without what is the target's own."""
        if name == "producer_id":
            return self._producers[target.name].get(value, value)
        if name in _NODES and value is not None and value >= 0:
            return "<node>"
        if name in _PLACES:
            return f"<{name}>"
        if name == "session_id":
            return "<session>" if value else 0
        if name == "coordinator_epoch":
            return max(value, -1) if value < 0 else "<epoch>"
        if name == "records":
            return (
                None if value is None else batches_in(bytes(value), lambda id_: self.leaf(target, "producer_id", id_))
            )
        if isinstance(value, datetime):
            value = round(value.timestamp() * 1000)
        if name in _TIMES and value is not None and value >= RECENT:
            return "<now>"
        return super().leaf(target, name, value)

    def unlike(self, api: str, version: int, note: str, kafka: Any, tidegate: Any) -> tuple[int, list[Difference]]:
        """How many fields were compared, and those that differ; configs by their names."""
        return super().unlike(api, version, note, _keyed(kafka), _keyed(tidegate))

    # -- questions

    async def answered(self, api: str, clients: Sequence[RawClient], requests: Sequence[Any]) -> None:
        """Send each target its request; again while it is transient, and while both should become alike."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _PATIENCE_S
        while True:
            await asyncio.gather(*map(self._ask_one, self.targets, clients, requests))
            again = api in _READS and not getattr(requests[0], "session_epoch", -1) >= 0
            if not again or loop.time() > deadline_s or not self._differs(api, requests[0].__version__):
                return
            await asyncio.sleep(_PAUSE_S)
            if api == "Fetch":
                await self._refresh(clients[1], requests[1])

    async def _refresh(self, client: RawClient, request: Any) -> None:
        """Let the broker that is asked learn of the ends: it asks for them only where a reader has reached its own."""
        for topic in request.topics:
            name = getattr(topic, "topic", None) or self.targets.tidegate.name_of(topic.topic_id)
            partitions = [{"partition_index": one.partition, "timestamp": -1} for one in topic.partitions]
            topics = [{"name": name, "partitions": partitions}]
            await client.ask(request_of_version(2, 1, replica_id=-1, topics=topics))

    async def ask(self, *asked: Any, **values: Any) -> Any:
        """Ask both, as ever; a connection that both close ends the conversation. Raises Ended."""
        answer = await super().ask(*asked, **values)
        if answer == CLOSED:
            raise Ended
        return answer

    def _differs(self, api: str, version: int) -> bool:
        kafka, tidegate = self.last["kafka"], self.last["tidegate"]
        return any(self.find(one) is None for one in self.unlike(api, version, "", kafka, tidegate)[1])

    async def _ask_one(self, target: Target, client: RawClient, request: Any) -> None:
        async with asyncio.timeout(_TRANSIENT_S):
            while True:
                try:
                    answer = await client.ask(request)
                except (asyncio.IncompleteReadError, ConnectionError):
                    self.last[target.name] = CLOSED
                    return
                key = request.__api_key__
                if key == _LIST_TRANSACTIONS:
                    answer = await self._listed_everywhere(target, request)
                if key in (_INIT_PRODUCER_ID, _END_TXN) and getattr(answer, "producer_id", -1) >= 0:
                    known = self._producers[target.name]
                    known.setdefault(answer.producer_id, f"producer {len(known) + 1}")
                if key == _FETCH and request.__version__ >= 7 and answer.session_id:
                    self.sessions[target.name] = answer.session_id
                self._learn_topics(target, request, answer)
                self.last[target.name] = shown = lockstep.tree("", answer, partial(self.leaf, target))
                shown.pop("brokers", None)  # one of Kafka, two of Tidegate
                if not _TRANSIENT & set(lockstep.codes(self.last[target.name]).split("+")):
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _listed_everywhere(self, target: Target, request: Any) -> Any:
        """Each broker lists the transactional ids that it coordinates."""
        answers = []
        for address in target.addresses:
            async with await RawClient.connect(address) as client:
                answers.append(await client.ask(request))
        return replace(answers[0], transaction_states=tuple(one for each in answers for one in each.transaction_states))

    def _learn_topics(self, target: Target, request: Any, answer: Any) -> None:
        if request.__api_key__ == _CREATE_TOPICS and request.__version__ >= 7:
            made = {one.name: one.topic_id for one in answer.topics if one.topic_id is not None}
            prefix = "unkept " if request.validate_only else ""
            target.topics.update({prefix + name: topic_id for name, topic_id in made.items()})
        elif request.__api_key__ == _CREATE_TOPICS and not request.validate_only:
            self._without_id.update(one.name for one in answer.topics if one.error_code.name == "none")
        elif request.__api_key__ in (_METADATA, _DESCRIBE_TOPIC_PARTITIONS):
            named_ids = {one.name: getattr(one, "topic_id", None) for one in answer.topics}
            known = {name: topic_id for name, topic_id in named_ids.items() if name in self._without_id and topic_id}
            target.topics.update(known)

    async def each(self, is_done: Callable[[Any], bool], key: int, version: int, **values: Any) -> None:
        """Ask each target, without a comparison, until its answer is done."""
        for target, client in zip(self.targets, await self.connected("waiter"), strict=True):
            request = request_of_version(key, version, **lockstep.resolved(values, target))
            async with asyncio.timeout(_TRANSIENT_S):
                while not is_done(await client.ask(request)):
                    await asyncio.sleep(_PAUSE_S)

    # -- requests that every kind makes

    async def topics(self, names: Mapping[str, int], **configs: str) -> None:
        """Make topics whose records stay, old as they are, and alter their configs."""
        await make_topics(self.targets, names)
        for name in names:
            await self.alter(name, retention_ms="-1", segment_ms=_NEVER, **configs)

    async def alter(self, topic: str, **configs: str) -> Any:
        """Set configs of a topic, dots being underscores here."""
        settings = [
            {"name": name.replace("_", "."), "config_operation": 0, "value": value} for name, value in configs.items()
        ]
        resource = {"resource_type": 2, "resource_name": topic, "configs": settings}
        answer = await self.ask(44, 1, resources=[resource], validate_only=False)
        await self.each(
            lambda found: {one.name.replace(".", "_"): one.value for one in found.results[0].configs}.items()
            >= configs.items(),
            32, 4, resources=[{"resource_type": 2, "resource_name": topic, "configuration_keys": None}],
            include_synonyms=False, include_documentation=False,
        )  # fmt: skip
        return answer

    def labelled(self, topic: str, by_id: bool, field: str = "name") -> dict[str, Any]:
        """A topic in a request, by its name or its id."""
        return {"topic_id": lambda target: target.topics[topic]} if by_id else {field: topic}

    async def produce(
        self,
        topic: str,
        batches: Mapping[int, Any],
        version: int,
        note: str = "",
        actor: str = "producer",
        **changes: Any,
    ) -> Any:
        """Produce to partitions; a batch is bytes, or made for each target."""
        data = [{"index": index, "records": raw} for index, raw in batches.items()]
        asked = {"transactional_id": None, "acks": -1, "timeout": 30_000} | changes
        entry = {**self.labelled(topic, version >= 13), "partition_data": data}
        return await self.ask(0, version, actor, note, topic_data=[entry], **asked)

    def batch(self, shape: Shape, producer: str, epoch: int, sequence: int, transactional: bool = False) -> Any:
        """The batch of a producer, made for each target."""
        return lambda target: shape.bytes_of(self.producer(producer)(target), epoch, sequence, transactional)

    async def fetch(
        self, topic: str, offsets: Mapping[int, int], version: int = 11, actor: str = "consumer", note: str = "",
        session: tuple[Any, int] = (0, -1), partition: Mapping[str, Any] | None = None, **changes: Any,
    ) -> Any:  # fmt: skip
        """Fetch of partitions from these offsets; `partition` changes their fields."""
        asked = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
        asked |= {"partition_max_bytes": 1 << 20, **(partition or {})}
        partitions = [{"partition": index, "fetch_offset": offset, **asked} for index, offset in offsets.items()]
        topics = [{**self.labelled(topic, version >= 13, "topic"), "partitions": partitions}] if partitions else []
        values = {
            "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 22, "isolation_level": 0,
            "session_id": session[0], "session_epoch": session[1], "topics": topics, "forgotten_topics_data": [],
            "rack_id": "",
        }  # fmt: skip
        return await self.ask(1, version, actor, note, **values | changes)

    async def list_offsets(
        self, topic: str, times: Mapping[int, int], version: int, isolation: int = 0, epoch: int = -1, note: str = ""
    ) -> Any:
        """ListOffsets of partitions at these times."""
        partitions = [
            {"partition_index": index, "current_leader_epoch": epoch, "timestamp": time}
            for index, time in times.items()
        ]
        topics = [{"name": topic, "partitions": partitions}]
        return await self.ask(
            2, version, "consumer", note, replica_id=-1, isolation_level=isolation, topics=topics, timeout=1_000
        )

    async def describe_producers(self, topic: str, indexes: Sequence[int]) -> Any:
        """DescribeProducers of partitions."""
        return await self.ask(61, 0, topics=[{"name": topic, "partition_indexes": tuple(indexes)}])


def _keyed(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_keyed(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        name: {one["name"]: _keyed(one) for one in own if one["name"] != _OF_THE_PEER}
        if name == "configs" and own
        else _keyed(own)
        for name, own in tree.items()
    }


def only(answer: Any, *path: str) -> Any:
    """The only element of arrays in arrays."""
    for name in path:
        [answer] = answer[name]
    return answer


__all__ = ["Conversation", "only"]
