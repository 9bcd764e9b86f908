"""The CLI's Kafka client: sends each request to the broker that Kafka requires for it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client import group_requests
from tidegate.cli.client.described_groups import (
    ASSIGNED,
    CLASSIC,
    SHARE,
    ShareOffset,
    alter_share_offsets,
    delete_share_offsets,
    describe_assigned,
    fetch_share_offsets,
    share_offsets_of,
)
from tidegate.cli.client.group_requests import Commit, Identities, Place, by_topic
from tidegate.cli.client.kafka_wire import Connection, request
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import Brokers
from tidegate.diagnosis.formatting import COMMAND, listed
from tidegate.protocol.api_keys import ApiKey

EARLIEST: Final = -2
LATEST: Final = -1

_GROUPS_PER_REQUEST: Final = 200
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
class Topic:
    """A topic from Metadata: partition -> node id of its leader."""

    name: str
    leaders: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group from ListGroups, and its description and offsets by the APIs of its type."""

    listed: Any
    described: Any
    committed: Mapping[Place, int]
    shares: Mapping[Place, ShareOffset] = field(default_factory=dict)
    """Of a share group."""


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
        connection = self._connection((await self._coordinator(group_id)).address)
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

    async def _coordinator(self, group_id: str) -> Connection:
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

    async def _ask_coordinator(
        self, group_id: str, api: ApiKey, values: Mapping[str, Any], codes: Callable[[Any], Iterable[ErrorCode]]
    ) -> Any:
        """Ask a group's coordinator; retry while it moves or loads, according to the error `codes` of the response."""
        for _ in range(_TRIES):
            connection = await self._coordinator(group_id)
            answer = await connection.ask(api, **values)
            if _AGAIN.isdisjoint(codes(answer)):
                return answer
            await asyncio.sleep(_PAUSE_S)
        raise CommandFailed(f"group {group_id}: its coordinator is not available")

    async def ask(self, api: ApiKey, **values: Any) -> Any:
        """Send a request that any broker can answer."""
        assert self._first is not None
        return await self._first.ask(api, **values)

    async def ask_broker(self, node_id: int, api: ApiKey, **values: Any) -> Any:
        """Send a request to a given broker, or to the first that answered if that one is not listed."""
        known = self._brokers.get(node_id)
        return await (await self._at(known)).ask(api, **values) if known else await self.ask(api, **values)

    async def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
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
            topic.name: Topic(topic.name, {one.partition_index: one.leader_id for one in topic.partitions})
            for topic in answer.topics
            if topic.error_code is ErrorCode.none
        }

    async def ask_cluster_id(self) -> str | None:
        """The cluster id of the brokers."""
        await self.topics([])
        return self.cluster_id

    # -- groups

    async def all_groups(self) -> list[ObservedGroup]:
        """Every group, in order of id. Each broker lists the groups that it coordinates, and describes them at once.

        Groups of `silent` brokers may be missing. Raises CommandFailed if no broker answered.
        """
        await self.topics([])
        found = await asyncio.gather(*(self._groups_of(node_id) for node_id in self._brokers))
        if self._brokers.keys() <= self.silent.keys():
            raise CommandFailed("; ".join(self.silent.values()) or "no broker is listed")
        by_id = {observed.listed.group_id: observed for of_broker in found for observed in of_broker}
        return [by_id[group_id] for group_id in sorted(by_id)]

    async def _groups_of(self, node_id: int) -> list[ObservedGroup]:
        try:
            return await self._groups_at(await self._at(self._brokers[node_id]))
        except CommandFailed as failure:
            self.silent[node_id] = str(failure)
            return []

    async def _groups_at(self, connection: Connection) -> list[ObservedGroup]:
        answer = await connection.ask(ApiKey.LIST_GROUPS, states_filter=(), types_filter=())
        raise_for(answer.error_code, f"ListGroups at {connection.address}")
        found = []
        by_type: dict[str, list[Any]] = {}
        for group in answer.groups:
            by_type.setdefault(group.group_type if group.group_type in ASSIGNED else CLASSIC, []).append(group)
        for kind, groups in by_type.items():
            for first in range(0, len(groups), _GROUPS_PER_REQUEST):
                found += await _observe(connection, kind, groups[first : first + _GROUPS_PER_REQUEST])
        return found

    async def describe(self, group_id: str) -> Any:
        """A group of any type, with the fields of DescribeGroups; state `Dead` if it does not exist."""
        values = {"groups": (group_id,), "include_authorized_operations": False}
        answer = await self._ask_coordinator(group_id, ApiKey.DESCRIBE_GROUPS, values, group_requests.codes_of_groups)
        (group,) = answer.groups
        raise_for(group.error_code, f"group {group_id}")
        if group.group_state != "Dead":
            return group
        connection = await self._coordinator(group_id)
        listed = await connection.ask(ApiKey.LIST_GROUPS, states_filter=(), types_filter=ASSIGNED)
        kind = next((one.group_type for one in listed.groups if one.group_id == group_id), None)
        if kind is None:
            return group
        return (await describe_assigned(connection, kind, [group_id]))[group_id]

    async def share_offsets(self, group_id: str) -> dict[Place, ShareOffset]:
        """The share-partitions of a share group."""
        answer = await self._ask_coordinator(
            group_id,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            fetch_share_offsets([group_id]),
            group_requests.codes_of_groups,
        )
        raise_for(answer.groups[0].error_code, f"group {group_id}")
        return share_offsets_of(answer.groups[0])

    async def move_share_offsets(
        self, group_id: str, offsets: Mapping[Place, int], forgotten: Iterable[str]
    ) -> dict[Place, ErrorCode]:
        """Set start offsets of a share group without members, and delete those of topics; the code of each change."""
        codes: dict[Place, ErrorCode] = {}
        if offsets:
            asked = alter_share_offsets(group_id, offsets)
            answer = await self._ask_coordinator(
                group_id, ApiKey.ALTER_SHARE_GROUP_OFFSETS, asked, group_requests.code_of_all
            )
            raise_for(answer.error_code, f"group {group_id}")
            codes |= {
                (one.topic_name, at.partition_index): at.error_code for one in answer.responses for at in one.partitions
            }
        if topics := sorted(set(forgotten)):
            asked = delete_share_offsets(group_id, topics)
            answer = await self._ask_coordinator(
                group_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, asked, group_requests.code_of_all
            )
            raise_for(answer.error_code, f"group {group_id}")
            codes |= {(one.topic_name, -1): one.error_code for one in answer.responses}
        return codes

    async def leave(self, group_id: str, members: Identities, reason: str) -> list[Any]:
        """LeaveGroup of members in one batch; each with its own error code."""
        values = group_requests.leave(group_id, members, reason)
        answer = await self._ask_coordinator(group_id, ApiKey.LEAVE_GROUP, values, group_requests.code_of_all)
        raise_for(answer.error_code, f"group {group_id}")
        return list(answer.members)

    async def delete_group(self, group_id: str) -> None:
        """DeleteGroups of one group."""
        answer = await self._ask_coordinator(
            group_id, ApiKey.DELETE_GROUPS, {"groups_names": (group_id,)}, lambda got: [got.results[0].error_code]
        )
        raise_for(answer.results[0].error_code, f"group {group_id}")

    # -- offsets

    async def committed(self, group_id: str) -> dict[Place, int]:
        """OffsetFetch of all committed offsets of a group."""
        answer = await self._ask_coordinator(
            group_id, ApiKey.OFFSET_FETCH, group_requests.fetch_offsets((group_id,)), group_requests.codes_of_groups
        )
        (group,) = answer.groups
        raise_for(group.error_code, f"group {group_id}")
        return group_requests.committed_of(group)

    async def commit(self, group_id: str, offsets: Mapping[Place, Commit]) -> dict[Place, ErrorCode]:
        """OffsetCommit without a generation, accepted while the group is empty; error codes by partition."""
        values = group_requests.commit(group_id, offsets)
        return group_requests.codes_of_partitions(
            await self._ask_coordinator(
                group_id,
                ApiKey.OFFSET_COMMIT,
                values,
                lambda answer: group_requests.codes_of_partitions(answer).values(),
            )
        )

    async def delete_offsets(self, group_id: str, places: Iterable[Place]) -> dict[Place, ErrorCode]:
        """OffsetDelete (KIP-496); error codes by partition."""
        values = group_requests.delete_offsets(group_id, places)
        answer = await self._ask_coordinator(group_id, ApiKey.OFFSET_DELETE, values, group_requests.code_of_all)
        raise_for(answer.error_code, f"group {group_id}")
        return group_requests.codes_of_partitions(answer)

    async def offsets_at(self, wanted: Mapping[Place, int], topics: Mapping[str, Topic]) -> dict[Place, int]:
        """ListOffsets of existing partitions at a timestamp, ms, EARLIEST or LATEST; -1 without a later record."""
        found = await self.offsets_known(wanted, topics)
        if missing := [f"{topic} {index}" for topic, index in sorted(wanted.keys() - found.keys())]:
            raise CommandFailed(f"no broker returns the offsets of {listed(missing)}")
        return found

    async def offsets_known(self, wanted: Mapping[Place, int], topics: Mapping[str, Topic]) -> dict[Place, int]:
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


async def _observe(connection: Connection, kind: str, listed: Sequence[Any]) -> list[ObservedGroup]:
    """Groups of one type at their coordinator, at once."""
    group_ids = tuple(group.group_id for group in listed)
    if kind == SHARE:
        described = await describe_assigned(connection, kind, group_ids)
        answer = await connection.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, **fetch_share_offsets(group_ids))
        shares = {group.group_id: share_offsets_of(group) for group in answer.groups}
        return [ObservedGroup(one, described[one.group_id], {}, shares[one.group_id]) for one in listed]
    committed = await connection.ask(ApiKey.OFFSET_FETCH, **group_requests.fetch_offsets(group_ids))
    offsets = {group.group_id: group_requests.committed_of(group) for group in committed.groups}
    members: Mapping[str, Any]
    if kind in ASSIGNED:
        members = await describe_assigned(connection, kind, group_ids)
    else:
        asked = {"groups": group_ids, "include_authorized_operations": False}
        found = await connection.ask(ApiKey.DESCRIBE_GROUPS, **asked)
        members = {group.group_id: group for group in found.groups}
    return [ObservedGroup(one, members[one.group_id], offsets[one.group_id]) for one in listed]


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
