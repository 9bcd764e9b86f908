"""What KIP-848 groups and share groups cost: heartbeats at rest, one more member, records that are worked off."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from bench import logs
from bench.endpoint import Endpoint
from bench.hot import Flood, flood_like, measured
from bench.kafka_wire import (
    ALTER_CONFIGS,
    CONSUMER_GROUP_HEARTBEAT,
    SHARE_FETCH,
    SHARE_GROUP_HEARTBEAT,
    MeasureFailed,
    Wire,
    encode,
    request,
)
from bench.processes import Meter, percentiles

_CONNECTS_AT_ONCE: Final = 32
_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.002
_RETRIED: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
_ACCEPT: Final = 1
_FETCHED_MAX: Final = 500
"""Records of one share fetch, as the Java client asks for."""


@dataclass(slots=True, kw_only=True)
class EpochMember:
    """A member of a KIP-848 or share group on a connection of its own."""

    group_id: str
    topic: str
    wire: Wire
    address: str
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    assigned: dict[Any, tuple[int, ...]] = field(default_factory=dict)

    async def ask_heartbeat(self, message: Any) -> bool:
        """One heartbeat; whether the answer has an assignment. Raises MeasureFailed."""
        answer = await ask(self.wire, message)
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        found = answer.assignment.topic_partitions
        self.assigned = {one.topic_id: one.partitions for one in found if one.partitions}
        return True


M = TypeVar("M", bound="EpochMember")


@dataclass(slots=True, kw_only=True)
class Member(EpochMember):
    """A member of a KIP-848 group: it reports what it owns after each change, and gives up at once."""

    interval_s: float

    @property
    def owned_count(self) -> int:
        """Partitions."""
        return sum(map(len, self.assigned.values()))

    def request(self, reports: bool) -> Any:
        """One heartbeat."""
        joins = self.epoch == 0
        owned = [{"topic_id": topic, "partitions": some} for topic, some in self.assigned.items()]
        return request(
            CONSUMER_GROUP_HEARTBEAT, group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch,
            rebalance_timeout=60_000 if joins else -1, subscribed_topic_names=[self.topic] if joins else None,
            topic_partitions=owned if reports else None,
        )  # fmt: skip

    async def heartbeat(self, reports: bool) -> bool:
        """One heartbeat; whether the next one follows at once, with what is owned now."""
        return await self.ask_heartbeat(self.request(reports))

    async def run(self) -> None:
        """Join, then heartbeats until cancelled."""
        reports = await self.heartbeat(reports=True)
        while True:
            if not reports:
                await asyncio.sleep(self.interval_s)
            reports = await self.heartbeat(reports)


async def ask(wire: Wire, message: Any) -> Any:
    """An answer without an error; Kafka's coordinator may have to load first. Raises MeasureFailed."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        answer = await wire.ask(message)
        if answer.error_code is ErrorCode.none:
            return answer
        if answer.error_code not in _RETRIED or time.monotonic() > deadline:
            raise MeasureFailed(f"{type(message).__name__}: {answer.error_code.name}")
        await asyncio.sleep(0.1)


async def _members(
    endpoint: Endpoint, args: argparse.Namespace, topic: str, count: int, make: Callable[..., M]
) -> list[M]:
    """Members on connections to their group's coordinator."""
    group_id = f"bench-{args.run_id}"
    bootstrap = await endpoint.wire()
    address = await endpoint.coordinator(bootstrap, group_id)
    bootstrap.close()
    connecting = asyncio.Semaphore(_CONNECTS_AT_ONCE)

    async def connect() -> M:
        async with connecting:
            wire = await Wire.connect(address)
            await wire.hello()
            return make(group_id=group_id, topic=topic, wire=wire, address=address)

    return list(await asyncio.gather(*(connect() for _ in range(count))))


def _consumer(args: argparse.Namespace) -> Callable[..., Member]:
    return partial(Member, interval_s=args.heartbeat_ms / 1_000)


async def _until_assigned(members: Sequence[Member], partitions: int, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all have the newest epoch, and partitions, all of them. Raises what a member failed with."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (
        len({one.epoch for one in members}) > 1
        or not all(one.owned_count for one in members)
        or sum(one.owned_count for one in members) != partitions
    ):
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise MeasureFailed(f"not assigned in {_TIMEOUT_S:g} s")
        await asyncio.sleep(_POLL_S)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def heartbeats(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """Members of one KIP-848 group at rest, each sending heartbeats as fast as they are answered."""
    async with endpoint.topic("epochs", args.connections) as (topic, _):
        members = await _members(endpoint, args, topic, args.connections, _consumer(args))
        tasks = [asyncio.create_task(one.run()) for one in members]
        await _until_assigned(members, args.connections, tasks)
        await _cancel(tasks)
        floods = [await _flood(one, args.depth) for one in members]
        return await measured(endpoint, args, floods)


async def _flood(member: Member, depth: int) -> Flood:
    """The member's heartbeats on a new connection: the cancelled one may still get an answer."""
    member.wire.close()
    wire, frame = await Wire.connect(member.address), encode(member.request(reports=False))
    good = await wire.send(frame)
    wire.close()
    return await flood_like(member.address, CONSUMER_GROUP_HEARTBEAT, frame, good, depth)


async def rebalance(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """One more member joins a KIP-848 group: its first heartbeat until all have the new assignment."""
    partitions = 2 * (args.members + 1)
    async with endpoint.topic("epochs", partitions) as (topic, _):
        members = await _members(endpoint, args, topic, args.members, _consumer(args))
        tasks = [asyncio.create_task(one.run()) for one in members]
        await _until_assigned(members, partitions, tasks)
        took, cpu_us = [], []
        for _ in range(args.tries):
            await asyncio.sleep(1.5)  # longer than the assignment interval
            (late,) = await _members(endpoint, args, topic, 1, _consumer(args))
            meter = Meter(endpoint.pids)
            meter.start()
            tasks.append(asyncio.create_task(late.run()))
            while late.epoch == 0:
                await asyncio.sleep(_POLL_S)
            await _until_assigned([*members, late], partitions, tasks)
            took.append(meter.stop())
            cpu_us.append(meter.figures(1).get("cpu_us_per_op", 0.0))
            await _cancel([tasks.pop()])
            await _leave(late)
            await _until_assigned(members, partitions, tasks)
        await _cancel(tasks)
        return {
            "members": args.members, "heartbeat_ms": args.heartbeat_ms, "ops": args.tries,
            "cpu_us_per_op": round(sum(cpu_us) / len(cpu_us), 1), **percentiles(took),
        }  # fmt: skip


async def _leave(member: Member) -> None:
    member.wire.close()
    wire, member.epoch = await Wire.connect(member.address), -1
    await ask(wire, member.request(reports=False))
    wire.close()


# -- share groups


@dataclass(slots=True, kw_only=True)
class Worker(EpochMember):
    """A member of a share group: it accepts with each fetch what the one before brought."""

    accepted: int = 0
    """Records whose acknowledgement was answered."""

    async def join(self) -> None:
        """Until it has partitions."""
        while not self.assigned:
            message = request(
                SHARE_GROUP_HEARTBEAT, group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch,
                subscribed_topic_names=[self.topic] if self.epoch == 0 else None,
            )  # fmt: skip
            await self.ask_heartbeat(message)
            if not self.assigned:
                await asyncio.sleep(0.2)

    async def work(self) -> None:
        """Fetch and accept until cancelled."""
        session, got = 0, dict[tuple[Any, int], list[tuple[int, int]]]()
        while True:
            named = {(topic, index) for topic, indexes in self.assigned.items() for index in indexes}
            topics: dict[Any, list[Any]] = {}
            for topic, index in sorted(named if session == 0 else got, key=repr):
                batches = [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": (_ACCEPT,)}
                    for first, last in got.get((topic, index), ())
                ]
                partition = {"partition_index": index, "acknowledgement_batches": batches}
                topics.setdefault(topic, []).append(partition)
            message = request(
                SHARE_FETCH, group_id=self.group_id, member_id=self.member_id, share_session_epoch=session,
                max_wait=500, min_bytes=1, max_bytes=50 << 20, max_records=_FETCHED_MAX, batch_size=_FETCHED_MAX,
                topics=[{"topic_id": topic, "partitions": some} for topic, some in topics.items()],
                forgotten_topics_data=[],
            )  # fmt: skip
            answer = await ask(self.wire, message)
            self.accepted += sum(last - first + 1 for some in got.values() for first, last in some)
            got, session = {}, session + 1
            for found in answer.responses:
                for one in found.partitions:
                    if one.error_code is not ErrorCode.none or one.acknowledge_error_code not in (0, ErrorCode.none):
                        raise MeasureFailed(f"ShareFetch: {one.error_code.name}, {one.acknowledge_error_code}")
                    got[found.topic_id, one.partition_index] = [
                        (records.first_offset, records.last_offset) for records in one.acquired_records
                    ]


async def share(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """`--members` share consumers work off the records of 4 partitions: until every record is accepted."""
    count = int(args.megabytes * 1_000_000 // args.size)
    async with endpoint.topic("share", logs.PARTITIONS) as (topic, _):
        await asyncio.to_thread(logs.fill, endpoint.bootstrap, topic, count, args.size, False)
        workers = await _members(endpoint, args, topic, args.members, Worker)
        await _from_the_beginning(endpoint, workers[0].group_id)
        await asyncio.gather(*(one.join() for one in workers))
        meter = Meter(endpoint.pids)
        meter.start()
        tasks = [asyncio.create_task(one.work()) for one in workers]
        deadline = time.monotonic() + _TIMEOUT_S
        while sum(one.accepted for one in workers) < count:
            for task in tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise MeasureFailed(f"{sum(one.accepted for one in workers)} of {count} records in {_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
        meter.stop()
        await _cancel(tasks)
        for worker in workers:
            worker.wire.close()
        return {"members": args.members, "size": args.size, **meter.figures(count)}


async def _from_the_beginning(endpoint: Endpoint, group_id: str) -> None:
    """Have the group begin at the first record."""
    wire = await endpoint.wire()
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": group_id, "configs": [config]}
    answer = await wire.ask(request(ALTER_CONFIGS, resources=[resource], validate_only=False))
    wire.close()
    if answer.responses[0].error_code is not ErrorCode.none:
        raise MeasureFailed(f"IncrementalAlterConfigs: {answer.responses[0].error_code.name}")
