"""The requests that are measured, each as a client sends it to a warm broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.cost.cluster import WARM_UPS, Action, Client, Cluster, Cost
from tests.cost.counting import script_files
from tests.kit.member import ClassicMember
from tests.kit.wire import request, request_of_version
from tests.simulation.frames import pack_assignment
from tests.support import clock
from tests.support.logs import batch_bytes
from tidegate.groups.session_renewals import RENEWAL_INTERVAL_S

TOPIC: Final = "t"
PARTITION_COUNT: Final = 16
PAUSE_S: Final = 0.005
"""Until what was sent is at rest: parked, or known to the group."""
REPORTED_S: Final = 0.12
"""Until commits are reported to the mirrors and written there."""
_SESSION_MS: Final = 300_000
_DEPTH: Final = 16
_PRODUCE, _FETCH, _METADATA, _FIND, _VERSIONS, _CREATE = 0, 1, 3, 10, 18, 19
_CONSUMER_HEARTBEAT, _SHARE_HEARTBEAT = 68, 76


class Member(ClassicMember):
    """A member of a group on its own connection."""

    session_timeout_ms = rebalance_timeout_ms = _SESSION_MS

    def __init__(self, client: Client, group_id: str) -> None:
        self.client, self.group_id = client, group_id
        self.leads: tuple[str, ...] = ()

    async def join(self) -> None:
        """JoinGroup v9, in two round trips the first time."""
        while True:
            answer = await self.client.ask(self.join_request())
            self.member_id = answer.member_id
            if answer.error_code is ErrorCode.none:
                self.generation = answer.generation_id
                self.leads = tuple(sorted(one.member_id for one in answer.members))
                return
            assert answer.error_code is ErrorCode.member_id_required, answer

    async def sync(self) -> None:
        """SyncGroup v5; the leader gives each member one partition."""
        answer = await self.client.ask(self.sync_request(dict.fromkeys(self.leads, pack_assignment(TOPIC, (0,)))))
        assert answer.error_code is ErrorCode.none, answer

    def commit(self, partition_count: int, offset: int) -> Any:
        """OffsetCommit v9 of one offset for some partitions."""
        return self.commit_request({TOPIC: dict.fromkeys(range(partition_count), offset)}, 9)


async def rebalance(first: Member, others: Sequence[Member]) -> None:
    """One joins, which begins a round; then the others; then all sync."""
    joining = [asyncio.create_task(first.join())]
    await asyncio.sleep(PAUSE_S)
    joining += [asyncio.create_task(member.join()) for member in others]
    await asyncio.gather(*joining)
    await asyncio.gather(*(member.sync() for member in (first, *others)))


async def group(cluster: Cluster, group_id: str, size: int = 1) -> list[Member]:
    """A stable group, its leader first."""
    first, *others = [Member(await cluster.client(), group_id) for _ in range(size)]
    await rebalance(first, others)
    return sorted((first, *others), key=lambda member: not member.leads)


def produce_request(index: int) -> Any:
    """Produce v9 of one batch of one record, all in sync."""
    data = {"index": index, "records": batch_bytes(timestamp=clock.START_MS, value=b"v" * 100)}
    topics = [{"name": TOPIC, "partition_data": [data]}]
    return request(_PRODUCE, 9, transactional_id=None, acks=-1, timeout=5_000, topic_data=topics)


def fetch_request(index: int, offset: int) -> Any:
    """Fetch v12 of one partition, without a session, parked at the end of its log."""
    partition = {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return request(
        _FETCH, 12, max_wait=10_000, min_bytes=1, max_bytes=1 << 20, forgotten_topics_data=[],
        topics=[{"topic": TOPIC, "partitions": [partition]}],
    )  # fmt: skip


def _asking(client: Client, *requests: Any) -> Action:
    async def act() -> None:
        await client.ask(*requests)

    return act


async def heartbeat(cluster: Cluster) -> Action:
    """One member's heartbeat by itself."""
    [member] = await group(cluster, "heartbeat")
    return _asking(member.client, member.heartbeat_request())


async def heartbeat_by_script(cluster: Cluster) -> Action:
    """The same where no snapshot answers."""
    [member] = await group(cluster, "heartbeat-by-script")

    async def act() -> None:
        cluster.broker.app.context.heartbeats.snapshots.discard_all()
        await member.client.ask(member.heartbeat_request())

    return act


def _epoch_heartbeat(api_key: int, group_id: str, member_epoch: int) -> Any:
    """ConsumerGroupHeartbeat or ShareGroupHeartbeat v1 of one member: a join, or a heartbeat that reports nothing."""
    joins = member_epoch == 0
    return request_of_version(
        api_key, 1, group_id=group_id, member_id="member", member_epoch=member_epoch,
        rebalance_timeout=_SESSION_MS if joins else -1, subscribed_topic_names=(TOPIC,) if joins else None,
        topic_partitions=() if joins else None,
    )  # fmt: skip


def epoch_heartbeat(api_key: int, by_script: bool) -> Callable[[Cluster], Awaitable[Action]]:
    """The heartbeat of a member of a KIP-848 or share group at rest that reports nothing."""

    async def prepare(cluster: Cluster) -> Action:
        client, group_id = await cluster.client(), f"epochs-{api_key}-{by_script}"
        joined = await client.ask(_epoch_heartbeat(api_key, group_id, 0))
        assert joined.error_code is ErrorCode.none, joined
        asked = _epoch_heartbeat(api_key, group_id, joined.member_epoch)

        async def act() -> None:
            if by_script:
                cluster.broker.app.context.heartbeats.snapshots.discard_all()
            answer = await client.ask(asked)
            assert (answer.error_code, answer.assignment) == (ErrorCode.none, None), answer

        return act

    return prepare


async def heartbeats_renewed(cluster: Cluster) -> Action:
    """One heartbeat of each of 16 groups, and the renewal of all their sessions."""
    members = [(await group(cluster, f"renewed-{number}"))[0] for number in range(_DEPTH)]

    async def act() -> None:
        await asyncio.gather(*(one.client.ask(one.heartbeat_request()) for one in members))
        await asyncio.sleep(RENEWAL_INTERVAL_S)

    return act


async def heartbeats_batched(cluster: Cluster) -> Action:
    """16 connections, each of another group, with 16 heartbeats each, in one tick."""
    members = [(await group(cluster, f"heartbeat-{number}"))[0] for number in range(_DEPTH)]

    async def act() -> None:
        await asyncio.gather(*(one.client.ask(*[one.heartbeat_request()] * _DEPTH) for one in members))

    return act


def commit(partition_count: int) -> Callable[[Cluster], Awaitable[Action]]:
    """A member's commit."""

    async def prepare(cluster: Cluster) -> Action:
        [member] = await group(cluster, f"commit-{partition_count}")
        return _asking(member.client, member.commit(partition_count, 1_000))

    return prepare


async def commits_of_groups(cluster: Cluster) -> Action:
    """16 connections, each of another group, with 2 commits each, in one tick."""
    members = [(await group(cluster, f"commits-{number}"))[0] for number in range(_DEPTH)]

    async def act() -> None:
        await asyncio.gather(*(one.client.ask(*[one.commit(1, 1_000)] * 2) for one in members))

    return act


def reported_commits(count: int) -> Callable[[Cluster], Awaitable[Action]]:
    """A member's commits of 10 partitions in a row, until they are counted and in the group's mirrors."""

    async def prepare(cluster: Cluster) -> Action:
        [member] = await group(cluster, f"reported-{count}")

        async def act() -> None:
            for offset in range(1_000, 1_000 + count):
                await member.client.ask(member.commit(10, offset))
            await asyncio.sleep(REPORTED_S)

        return act

    return prepare


def offset_fetch(partition_count: int, require_stable: bool) -> Callable[[Cluster], Awaitable[Action]]:
    """A member's question for its committed offsets; consumers require stable ones (KIP-447)."""

    async def prepare(cluster: Cluster) -> Action:
        [member] = await group(cluster, f"offsets-{partition_count}")
        await member.client.ask(member.commit(partition_count, 1_000))
        return _asking(member.client, member.offsets_request(TOPIC, range(partition_count), 8, require_stable))

    return prepare


async def rebalance_of_5(cluster: Cluster) -> Action:
    """Five members join again and sync."""
    leader, *others = await group(cluster, "five", 5)

    async def act() -> None:
        await rebalance(leader, others)

    return act


async def one_more_joining_50(cluster: Cluster) -> Action:
    """A new member joins 50, all of whom join again; then all sync."""
    members = await group(cluster, "fifty", 50 - WARM_UPS)

    async def act() -> None:
        newcomer = Member(await cluster.client(), "fifty")
        await rebalance(newcomer, members)
        members.append(newcomer)

    return act


def produce(in_flight: int) -> Callable[[Cluster], Awaitable[Action]]:
    """Batches for one partition that arrive together."""

    async def prepare(cluster: Cluster) -> Action:
        return _asking(await cluster.client(), *[produce_request(in_flight % PARTITION_COUNT)] * in_flight)

    return prepare


def delivery(index: int, reader_count: int) -> Callable[[Cluster], Awaitable[Action]]:
    """Readers wait at the end of a log; one append answers them all. Counts the fetches, the append, the answers."""

    async def prepare(cluster: Cluster) -> Action:
        writer, readers = await cluster.client(), [await cluster.client() for _ in range(reader_count)]
        offset = 0

        async def act() -> None:
            nonlocal offset
            parked = [reader.send(fetch_request(index, offset))[0] for reader in readers]
            await asyncio.sleep(PAUSE_S)
            assert not any(one.done() for one in parked)
            await writer.ask(produce_request(index))
            answers = await asyncio.gather(*parked)
            assert all(one.responses[0].partitions[0].records for one in answers)
            offset += 1

        if reader_count > 1:
            await act()  # the third answer shows that several connections read with one client id
        return act

    return prepare


async def metadata(cluster: Cluster) -> Action:
    """Metadata v12 of one topic of 16 partitions that the broker knows."""
    asked = request(
        _METADATA, 12, topics=[{"topic_id": None, "name": TOPIC}], allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    return _asking(await cluster.client(), asked)


async def find_coordinator(cluster: Cluster) -> Action:
    """FindCoordinator v4 of one group."""
    return _asking(await cluster.client(), request(_FIND, 4, key_type=0, coordinator_keys=("heartbeat",)))


async def api_versions(cluster: Cluster) -> Action:
    """ApiVersions v3."""
    asked = request(_VERSIONS, 3, client_software_name="cost", client_software_version="1")
    return _asking(await cluster.client(), asked)


OPERATIONS: Final[dict[str, Callable[[Cluster], Awaitable[Action]]]] = {
    "heartbeat": heartbeat,
    "heartbeat-16x16": heartbeats_batched,
    "commit-1": commit(1),
    "commit-10": commit(10),
    "commit-10-reported": reported_commits(1),
    "commit-10-reported-16": reported_commits(16),
    "offset-fetch-1": offset_fetch(1, require_stable=False),
    "offset-fetch-10": offset_fetch(10, require_stable=False),
    "stable-offset-fetch-1": offset_fetch(1, require_stable=True),
    "stable-offset-fetch-10": offset_fetch(10, require_stable=True),
    "rebalance-5": rebalance_of_5,
    "one-more-joining-50": one_more_joining_50,
    "produce": produce(1),
    "produce-16-in-flight": produce(_DEPTH),
    "delivery-1": delivery(2, 1),
    "delivery-100": delivery(3, 100),
    "metadata": metadata,
    "find-coordinator": find_coordinator,
    "api-versions": api_versions,
    "heartbeat-by-script": heartbeat_by_script,
    "consumer-heartbeat": epoch_heartbeat(_CONSUMER_HEARTBEAT, by_script=False),
    "consumer-heartbeat-by-script": epoch_heartbeat(_CONSUMER_HEARTBEAT, by_script=True),
    "share-heartbeat": epoch_heartbeat(_SHARE_HEARTBEAT, by_script=False),
    "heartbeat-renewed-16": heartbeats_renewed,
    "commit-16x2": commits_of_groups,
}
WALKS: Final = ("heartbeat", "heartbeat-by-script", "commit-1", "produce", "delivery-1", "rebalance-5")
"""Operations whose files `--walks` lists; `delivery-1` is a Produce that ends a parked Fetch."""


async def measure_all(cluster: Cluster) -> dict[str, Cost]:
    """The cost of each operation."""
    await set_up(cluster)
    found = {}
    for name, prepare in OPERATIONS.items():
        cluster.restart_randomness(name)
        found[name] = await cluster.measure(await prepare(cluster))
    return found


async def walk_all(cluster: Cluster) -> dict[str, list[str]]:
    """The product's files, Python and Lua, that run for some operations: what a reader of that path opens."""
    await set_up(cluster)
    found = {}
    for name in WALKS:
        await cluster.measure(await OPERATIONS[name](cluster))
        files = cluster.counters.files.union(*map(script_files, cluster.counters.scripts))
        found[name] = sorted(short for file in files if (short := _short(file)))
    return found


def _short(file: str) -> str:
    """A path within the product; empty for other files."""
    _, found, rest = file.rpartition("/tidegate/")
    return rest if found else file if file.startswith("redis_scripts/") else ""


async def set_up(cluster: Cluster) -> None:
    """Start the broker and create the topic."""
    await cluster.start()
    topic = {
        "name": TOPIC, "num_partitions": PARTITION_COUNT, "replication_factor": -1, "assignments": [], "configs": [],
    }  # fmt: skip
    client = await cluster.client()
    answer = await client.ask(request(_CREATE, 7, topics=[topic], timeout=5_000, validate_only=False))
    assert answer.topics[0].error_code is ErrorCode.none, answer
