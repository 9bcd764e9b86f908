"""A broker with all its services and no sockets, and clients of any organisation that ask it in kio's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from tests.kit.member import ClassicMember
from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tests.support.log_broker import fetch_request, produce_request
from tests.support.logs import batch_bytes
from tidegate.apis.call import BrokerContext, Client
from tidegate.protocol.consumer_blobs import write_assignment, write_subscription
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.catalog import Topic

_NONE = ErrorCode.none
_connections = iter(range(1, 1 << 31))


class WholeBroker:
    """One broker over links of its own."""

    def __init__(self, settings: Settings, node_id: int = 1, *, with_mirror: bool = True) -> None:
        self.settings = settings
        self.node_id = node_id
        self.with_mirror = with_mirror
        self.store = Store(settings)
        self.context: BrokerContext

    async def start(self) -> WholeBroker:
        """Start every service."""
        await self.store.start()
        self.context = context = build_broker(self.store, self.node_id).context
        if not self.with_mirror:
            context.mirror = None
        await context.catalog.start()
        await context.logs.start()
        await self.context.waits.start()
        return self

    async def close(self) -> None:
        """Close every service."""
        if self.context.mirror is not None:
            await self.context.mirror.close()
        await self.context.waits.close()
        await self.context.catalog.close()
        await self.context.logs.close()
        await self.store.close()

    async def create(self, name: str, partition_count: int = 1, org: str = "default", **overrides: str) -> Topic:
        """Make a topic; its configs with underscores for dots."""
        dotted = {key.replace("_", "."): value for key, value in overrides.items()}
        return await self.context.catalog.create(org, name, partition_count, dotted, uuid4())

    async def follow_no_topics(self) -> None:
        """Learn of changes of topics only by a refresh, as a broker whose notifications are late."""
        catalog = self.context.catalog
        await catalog._loops.close()
        self.store.pubsub.forget(self.store.cluster_keys.topic_changes, catalog._follower._on_message)

    async def mirrored(self) -> None:
        """All changes of the mirror are written."""
        mirror = self.context.mirror
        assert mirror is not None
        self.context.commit_reports.flush()
        while mirror.tasks or mirror._pending_positions:
            await mirror.tasks.wait()
            before = dict(mirror._pending_positions)
            await mirror.write()
            if mirror._pending_positions == before:
                return  # it waits for owners

    async def noted(self) -> None:
        """All changes are noted for the broker that samples lag, as after a second."""
        self.context.commit_reports.flush()
        self.store.changed_groups.flush()
        await self.context.logs._sweep()

    def client(self, client_id: str = "app", host: str = "127.0.0.1", org: str = "default") -> ClientOf:
        """A new connection."""
        return ClientOf(self, client_id, Client(next(_connections), host, 50_000, org=org))


@dataclass(slots=True)
class ClientOf(ClassicMember):
    """One client's connection: what it asks, as a member of a group once it has joined."""

    broker: WholeBroker
    client_id: str
    client: Client
    group_id: str = "orders"
    member_id: str = ""
    generation: int = -1
    session_timeout_ms: float = 30_000
    members: Sequence[str] = field(default_factory=list)

    async def ask(self, asked: Any) -> Any:
        """The answer to a request."""
        return await ask(self.broker.context, asked, self.client, self.client_id)

    async def produce(self, topic: str, *counts: int, index: int = 0) -> None:
        """Append one entry of so many records for each count."""
        for count in counts:
            answer = await self.ask(produce_request([(topic, [(index, batch_bytes(count=count))])]))
            assert answer.responses[0].partition_responses[0].error_code is _NONE

    async def fetch(self, topic: str, offset: int, index: int = 0, partition_max_bytes: int = 1 << 20) -> Any:
        """One fetch of one partition, outside sessions; its error code must be none."""
        answer = await self.ask(fetch_request([(topic, [(index, offset)])], partition_max_bytes=partition_max_bytes))
        [found] = answer.responses[0].partitions
        assert found.error_code is _NONE, found
        return found

    async def commit(self, topic: str, offset: int, index: int = 0, version: int = 8) -> ErrorCode:
        """Commit as the member that this client is, or as nobody; the partition's code."""
        answer = await self.ask(self.commit_request({topic: {index: offset}}, version))
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    async def committed(self, topic: str, index: int = 0) -> int:
        """The group's committed offset; -1 without."""
        answer = await self.ask(self.offsets_request(topic, [index], 7))
        offset: int = answer.topics[0].partitions[0].committed_offset
        return offset

    async def join(self, *topics: str) -> Any:
        """JoinGroup, both round trips of a new member; waits for the others."""
        self.metadata = write_subscription(topics)
        for _ in range(2):
            answer = await self.ask(self.join_request())
            self.member_id = answer.member_id
            if answer.error_code is not ErrorCode.member_id_required:
                break
        assert answer.error_code is _NONE, answer
        self.follow_join(answer)
        self.members = [member.member_id for member in answer.members]
        return answer

    async def sync(self, plan: Mapping[str, Mapping[str, Sequence[int]]] | None = None) -> Any:
        """SyncGroup: as the leader with everybody's partitions, as a follower without."""
        assignments = {member_id: write_assignment(parts) for member_id, parts in (plan or {}).items()}
        answer = await self.ask(self.sync_request(assignments))
        assert answer.error_code is _NONE, answer
        return answer

    async def own(self, topic: str, *indexes: int) -> None:
        """Join as the only member, and own these partitions (0 if none are named)."""
        await self.join(topic)
        await self.sync({self.member_id: {topic: indexes or (0,)}})

    async def leave(self) -> None:
        """LeaveGroup."""
        answer = await self.ask(self.leave_request())
        assert answer.error_code is _NONE
        self.member_id, self.generation = "", -1

    async def list_groups(self) -> list[str]:
        """Group ids of ListGroups."""
        answer = await self.ask(request(16, 5, states_filter=(), types_filter=()))
        return [group.group_id for group in answer.groups]

    async def describe(self) -> Any:
        """The group by DescribeGroups."""
        answer = await self.ask(request(15, 5, groups=(self.group_id,), include_authorized_operations=False))
        return answer.groups[0]

    async def delete(self) -> ErrorCode:
        """DeleteGroups; its code."""
        answer = await self.ask(request(42, 2, groups_names=(self.group_id,)))
        code: ErrorCode = answer.results[0].error_code
        return code
