"""The CLI's Kafka client: sends each request to the broker that Kafka requires for it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidegate.cli.client.group_requests import Place, by_topic
from tidegate.cli.client.kafka_wire import Connection, request
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import Brokers
from tidegate.diagnosis.formatting import COMMAND, listed
from tidegate.protocol.api_keys import ApiKey

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1

_TRIES: Final = 10
_PAUSE_S: Final = 0.2
_AGAIN: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
    }
)


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    """A topic from Metadata: partition -> node id of its leader."""

    name: str
    leaders: Mapping[int, int]


@dataclass(slots=True)
class KafkaClient:
    """An async context manager. Brokers record `client_id` as the origin of changes. Methods raise CommandFailed."""

    where: Brokers
    client_id: str = COMMAND
    silent: dict[int, str] = field(default_factory=dict)
    """Node ids of listed brokers that did not answer -> reason; they are not asked again."""
    listed: Sequence[Any] = ()
    """Brokers from the last Metadata response."""
    cluster_id: str | None = None
    """The cluster id from the last Metadata response."""
    _first: Connection | None = None
    _tls: ssl.SSLContext | None = None
    _connections: dict[str, Connection] = field(default_factory=dict)
    _brokers: dict[int, str] = field(default_factory=dict)

    async def __aenter__(self) -> KafkaClient:
        if self.where.missing:
            raise CommandFailed(self.where.missing)
        failures = []
        self._tls = self.where.tls.context() if self.where.tls else None
        for address in self.where.bootstrap.split(","):
            try:
                self._first = await self._at(address.strip())
                return self
            except CommandFailed as failure:
                failures.append(str(failure))
        raise CommandFailed("; ".join(failures))

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    # -- routing of requests

    async def connection_for(self, group_id: str) -> Connection:
        """A new connection to a group's coordinator for requests that block the connection; the caller closes it."""
        connection = self._connection((await self.coordinator(group_id)).address)
        await connection.open()
        return connection

    def _connection(self, address: str) -> Connection:
        return Connection(address, self.client_id, self._tls)

    async def _at(self, address: str) -> Connection:
        if address not in self._connections:
            connection = self._connection(address)
            await connection.open()
            self._connections[address] = connection
        return self._connections[address]

    async def coordinator(self, group_id: str) -> Connection:
        """The connection to a group's coordinator."""
        assert self._first is not None
        for _ in range(_TRIES):
            found = await self._first.ask(ApiKey.FIND_COORDINATOR, key=group_id, key_type=0)
            if found.error_code not in _AGAIN:
                raise_for(found.error_code, f"group {group_id}")
                try:
                    return await self._at(f"{found.host}:{found.port}")
                except CommandFailed:
                    return self._first  # Tidegate: any broker; Kafka: NOT_COORDINATOR until one is elected
            await asyncio.sleep(_PAUSE_S)
        raise CommandFailed(f"group {group_id}: no coordinator is available")

    async def ask_coordinator(
        self, group_id: str, api: ApiKey, values: Mapping[str, Any], codes: Callable[[Any], Iterable[ErrorCode]]
    ) -> Any:
        """Ask a group's coordinator; retry while it moves or loads, according to the error `codes` of the response."""
        for _ in range(_TRIES):
            connection = await self.coordinator(group_id)
            answer = await connection.ask(api, **values)
            if _AGAIN.isdisjoint(codes(answer)):
                return answer
            await asyncio.sleep(_PAUSE_S)
        raise CommandFailed(f"group {group_id}: its coordinator is not available")

    async def ask_every_broker(self, ask: Callable[[Connection], Awaitable[T]]) -> list[T]:
        """The answers of all listed brokers but `silent` ones. Raises CommandFailed if there are none."""
        await self.topics([])
        answers = await asyncio.gather(*(self._answer_of(node_id, ask) for node_id in self._brokers))
        if self._brokers.keys() <= self.silent.keys():
            raise CommandFailed("; ".join(self.silent.values()) or "no broker is listed")
        return [answer for answer in answers if answer is not None]

    async def _answer_of(self, node_id: int, ask: Callable[[Connection], Awaitable[T]]) -> T | None:
        try:
            return await ask(await self._at(self._brokers[node_id]))
        except CommandFailed as failure:
            self.silent[node_id] = str(failure)
            return None

    async def ask(self, api: ApiKey, **values: Any) -> Any:
        """Send a request that any broker can answer."""
        assert self._first is not None
        return await self._first.ask(api, **values)

    async def ask_broker(self, node_id: int, api: ApiKey, **values: Any) -> Any:
        """Send a request to a given broker, or to the first that answered if that one is not listed."""
        known = self._brokers.get(node_id)
        return await (await self._at(known)).ask(api, **values) if known else await self.ask(api, **values)

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicLeaders]:
        """Existing topics, of `names` or all; creates none."""
        part = request(ApiKey.METADATA).MetadataRequestTopic
        answer = await self.ask(
            ApiKey.METADATA,
            topics=None if names is None else tuple(part(name=name) for name in names),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self.listed, self.cluster_id = answer.brokers, answer.cluster_id
        self._brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        return {
            topic.name: TopicLeaders(topic.name, {one.partition_index: one.leader_id for one in topic.partitions})
            for topic in answer.topics
            if topic.error_code is ErrorCode.none
        }

    async def ask_cluster_id(self) -> str | None:
        """The cluster id of the brokers."""
        await self.topics([])
        return self.cluster_id

    async def offsets_at(self, wanted: Mapping[Place, int], topics: Mapping[str, TopicLeaders]) -> dict[Place, int]:
        """ListOffsets of existing partitions at a timestamp, ms, EARLIEST or LATEST; -1 without a later record."""
        found = await self.offsets_known(wanted, topics)
        if missing := [f"{topic} {index}" for topic, index in sorted(wanted.keys() - found.keys())]:
            raise CommandFailed(f"no broker returns the offsets of {listed(missing)}")
        return found

    async def offsets_known(self, wanted: Mapping[Place, int], topics: Mapping[str, TopicLeaders]) -> dict[Place, int]:
        """`offsets_at`, without the partitions whose offsets are unavailable."""
        by_leader: dict[int, dict[Place, int]] = defaultdict(dict)
        for place, timestamp in wanted.items():
            by_leader[topics[place[0]].leaders[place[1]]][place] = timestamp
        answers = await asyncio.gather(*(self._offsets(node_id, asked) for node_id, asked in by_leader.items()))
        found = {place: offset for answer in answers for place, offset in answer.items()}
        for node_id in self._brokers:  # any Tidegate broker can answer; Kafka's refuse partitions that they do not lead
            if rest := {place: timestamp for place, timestamp in wanted.items() if place not in found}:
                found |= await self._offsets(node_id, rest)
        return found

    async def _offsets(self, node_id: int, wanted: Mapping[Place, int]) -> dict[Place, int]:
        if node_id not in self._brokers or node_id in self.silent:
            return {}
        module = request(ApiKey.LIST_OFFSETS)
        topics = tuple(
            module.ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    module.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
                    for index, timestamp in partitions.items()
                ),
            )
            for name, partitions in by_topic(wanted).items()
        )
        try:
            connection = await self._at(self._brokers[node_id])
            answer = await connection.ask(ApiKey.LIST_OFFSETS, replica_id=-1, isolation_level=0, topics=topics)
        except CommandFailed as failure:
            self.silent[node_id] = str(failure)
            return {}
        return {
            (topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code is ErrorCode.none
        }


async def error_at(kafka: KafkaClient, place: Place, leader: int, offset: int) -> str | None:
    """The error that a consumer at an offset gets, if any."""
    module = request(ApiKey.FETCH)
    part = module.FetchPartition(
        partition=place[1], current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1,
    )  # fmt: skip
    answer = await kafka.ask_broker(
        leader, ApiKey.FETCH, cluster_id=None, replica_id=-1, max_wait=timedelta(0), min_bytes=0, max_bytes=1,
        isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic=place[0], partitions=(part,)),),
    )  # fmt: skip
    codes = [one.error_code for topic in answer.responses for one in topic.partitions]
    return next((code.name.upper() for code in codes if code is not ErrorCode.none), None)


def raise_for(code: ErrorCode, what: str) -> None:
    """Raises CommandFailed for any code but NONE."""
    if code is not ErrorCode.none:
        raise CommandFailed(f"{what}: {code.name.upper()}")


def own_name() -> str:
    """The origin of a change as recorded in the group's events: command, machine, process."""
    return f"{COMMAND}@{socket.gethostname()}:{os.getpid()}"
