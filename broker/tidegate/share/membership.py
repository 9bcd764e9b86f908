"""The membership of a share consumer: heartbeats, its assignment, and the brokers that lead its partitions."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from kio.schema.errors import ErrorCode

from tidegate.protocol.api_keys import ApiKey
from tidegate.share.connection import Connection, ShareError, raise_for, request_module
from tidegate.share.records import Place, by_topic
from tidegate.share.sasl import Sasl

_JOIN: Final = 0
_LEAVE: Final = -1
_REJOINS: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found})
RETRIES: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
    }
)
"""Errors that end by themselves."""
PAUSE_S: Final = 0.2
_TRIES: Final = 25
_FIRST_TRIES: Final = 5
"""Of the first heartbeat: its caller waits."""


class Membership:
    """One member of a share group. `failure` is set when the group refuses it for good."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Iterable[str],
        client_id: str,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        sasl: Sasl | None = None,
    ) -> None:
        self.group, self.topics, self.member_id = group, sorted(set(topics)), str(uuid4())
        self.failure: ShareError | None = None
        self.assigned: set[Place] = set()
        self.names: dict[UUID, str] = {}
        self.leaders: dict[Place, int] = {}
        """The brokers that lead the assigned partitions, by node id."""
        self._bootstrap = [address.strip().rpartition(":") for address in bootstrap.split(",")]
        self._client_id, self._tls, self._timeout_s = client_id, tls, timeout_s
        self._sasl = sasl
        self._epoch = _JOIN
        self._interval_s = 5.0
        self._brokers: dict[int, tuple[str, int]] = {}
        self._coordinator: Connection | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join, and send heartbeats from now on. Raises ShareError."""
        try:
            await self.heartbeat_once()
        except BaseException:
            if self._coordinator is not None:
                await self._coordinator.close()
            raise
        self._heartbeats = asyncio.create_task(self._run_heartbeats(), name="share-heartbeats")

    async def close(self) -> None:
        """Leave the group."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self._coordinator is not None:
            with contextlib.suppress(ShareError):
                await self._heartbeat(self._coordinator, _LEAVE)
            await self._coordinator.close()

    def connection(self, node: int) -> Connection:
        """A new connection to a broker."""
        return self._connect(*self._brokers[node])

    async def _run_heartbeats(self) -> None:
        """Heartbeats in the interval that the broker gives, until the group refuses the member."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.heartbeat_once()
            except ShareError as error:
                self.failure = error
                return

    async def heartbeat_once(self) -> None:
        """One heartbeat; joins again where the member is not known any more. Raises ShareError if it is refused."""
        error = ShareError("no broker answers")
        for _ in range(_FIRST_TRIES if self._heartbeats is None else _TRIES):
            try:
                self._coordinator = self._coordinator or await self._find_coordinator()
                answer = await self._heartbeat(self._coordinator, self._epoch)
            except ShareError as failure:
                error = failure
                if failure.code in _REJOINS:
                    self._epoch = _JOIN
                    continue
                if failure.code is not None and failure.code not in RETRIES:
                    raise
                if self._coordinator is not None:
                    await self._coordinator.close()
                self._coordinator = None
                await asyncio.sleep(PAUSE_S)
                continue
            self._epoch = answer.member_epoch
            self._interval_s = answer.heartbeat_interval / timedelta(seconds=1)
            if answer.assignment is not None:
                assigned = answer.assignment.topic_partitions
                self.assigned = {(topic.topic_id, index) for topic in assigned for index in topic.partitions}
                await self.refresh()
            return
        raise error

    async def _heartbeat(self, coordinator: Connection, epoch: int) -> Any:
        answer = await coordinator.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=tuple(self.topics) if epoch == _JOIN else None,
        )
        raise_for(answer)
        return answer

    def _connect(self, host: str, port: int) -> Connection:
        return Connection(host, port, self._client_id, self._tls, self._timeout_s, self._sasl)

    async def _ask_any(self, api: ApiKey, **values: Any) -> Any:
        """The answer of the first broker that answers. Raises ShareError."""
        error = ShareError("no broker answers")
        for host, port in [*self._brokers.values(), *((host, int(port)) for host, _, port in self._bootstrap)]:
            connection = self._connect(host, port)
            try:
                return await connection.ask(api, **values)
            except ShareError as failure:
                error = failure
            finally:
                await connection.close()
        raise error

    async def _find_coordinator(self) -> Connection:
        answer = await self._ask_any(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=(self.group,))
        (found,) = answer.coordinators
        raise_for(found)
        return self._connect(found.host, found.port)

    async def refresh(self) -> None:
        """Names and leaders of the assigned partitions."""
        part = request_module(ApiKey.METADATA).MetadataRequestTopic
        asked = tuple(part(topic_id=topic_id, name=None) for topic_id in by_topic(self.assigned))
        if not asked:
            return
        answer = await self._ask_any(
            ApiKey.METADATA, topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        leaders: dict[Place, int] = {}
        for topic in answer.topics:
            if topic.topic_id is not None and topic.name is not None:
                self.names[topic.topic_id] = topic.name
                leaders |= {(topic.topic_id, one.partition_index): one.leader_id for one in topic.partitions}
        self.leaders = {place: node for place, node in leaders.items() if node in self._brokers}
