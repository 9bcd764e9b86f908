"""Brokers of KIP-848 groups over a socket, and short ways to ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from tests.kit.member import Member
from tests.kit.wire import RawClient, request
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.settings import Settings

HEARTBEAT, DESCRIBE, COMMIT, FETCH, LEAVE, LIST, JOIN = 68, 69, 8, 9, 13, 16, 11


class Wire:
    """A connection to a broker of its own with topics t1 and t4, and short ways to ask."""

    def __init__(self, app: App, client: RawClient, topics: dict[str, UUID]) -> None:
        self.app, self.client, self.topics = app, client, topics
        self.group = f"g-{uuid4().hex[:8]}"
        self._members: list[Member] = []

    async def close(self) -> None:
        for client in (self.client, *(member.client for member in self._members)):
            await client.close()

    async def member(self, **traits: Any) -> Member:
        """A classic member to be, on its own connection."""
        client = await RawClient.connect(f"127.0.0.1:{self.app.broker.settings.port}")
        self._members.append(Member(client, self.group, **traits))
        return self._members[-1]

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        """A request by kio's newest field names."""
        return await self.client.ask(request(key, version, **fields))

    async def heartbeat(self, member_id: str, epoch: int, version: int = 1, **fields: Any) -> Any:
        """One heartbeat."""
        values: dict[str, Any] = {
            "group_id": self.group,
            "member_id": member_id,
            "member_epoch": epoch,
            "topic_partitions": None,
            "rebalance_timeout": fields.pop("rebalance_timeout_ms", -1),
            **fields,
        }
        return await self.ask(HEARTBEAT, version, **values)

    async def join(self, member_id: str, *topics: str, version: int = 1, **fields: Any) -> Any:
        """A join."""
        values = {"subscribed_topic_names": topics, "topic_partitions": (), "rebalance_timeout_ms": 60_000, **fields}
        return await self.heartbeat(member_id, 0, version, **values)

    def parts(self, answer: Any) -> dict[str, list[int]] | None:
        """The assignment by topic name; None if it has no news."""
        if answer.assignment is None:
            return None
        names = {topic_id: name for name, topic_id in self.topics.items()}
        return {names[one.topic_id]: list(one.partitions) for one in answer.assignment.topic_partitions}

    async def commit(self, member_id: str, epoch: int, offset: int = 1, version: int = 9, partition: int = 0) -> str:
        """Commit one offset of t4; the name of its code."""
        named = {"name": "t4"} if version < 10 else {"topic_id": self.topics["t4"]}
        one = {"partition_index": partition, "committed_offset": offset, "committed_metadata": None}
        answer = await self.ask(
            COMMIT, version, group_id=self.group, generation_id_or_member_epoch=epoch, member_id=member_id,
            topics=[{**named, "partitions": [one]}],
        )  # fmt: skip
        return str(answer.topics[0].partitions[0].error_code.name).upper()

    async def fetch(self, member_id: str | None, epoch: int) -> Any:
        """Fetch t4-0 as a member: the code of the group, or the offset."""
        topics = [{"name": "t4", "partition_indexes": (0,)}]
        group = {"group_id": self.group, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        (found,) = (await self.ask(FETCH, 9, groups=[group], require_stable=False)).groups
        if found.error_code is not ErrorCode.none:
            return found.error_code.name.upper()
        return found.topics[0].partitions[0].committed_offset

    async def describe(self, version: int = 1) -> Any:
        answer = await self.ask(DESCRIBE, version, group_ids=(self.group,), include_authorized_operations=False)
        return answer.groups[0]


def code(answer: Any) -> str:
    return str(answer.error_code.name).upper()


@asynccontextmanager
async def wire_of(valkey: ValkeyServer, **settings: Any) -> AsyncIterator[Wire]:
    """A broker with the topics t1 and t4, of as many partitions; another one of the cluster may have made them."""
    port = free_port()
    values: dict[str, Any] = {
        "redis_url": valkey.url,
        "key_prefix": f"tidegate:consumer-wire-{port}",
        "group_initial_rebalance_delay_ms": 0,
        "group_min_session_timeout_ms": 100,
        **settings,
    }
    async with AsyncExitStack() as stack:
        app = App(Settings(port=port, admin_port=free_port(), **values))
        await app.start()
        stack.push_async_callback(app.close)
        catalog = app.broker.context.catalog
        topics = {
            name: (await catalog.find("default", name) or await catalog.create("default", name, count)).topic_id
            for name, count in (("t1", 1), ("t4", 4))
        }
        wire = Wire(app, await RawClient.connect(f"127.0.0.1:{port}"), topics)
        stack.push_async_callback(wire.close)
        yield wire
