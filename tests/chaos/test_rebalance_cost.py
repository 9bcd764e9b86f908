"""What a rebalance of many members costs Redis: script calls a member, and the time of each script.

Raw members with 2 kB of metadata each; one more joins, everyone rejoins and syncs. Calls and their times
come from the server's SLOWLOG with a threshold of 0. The count is asserted; times are printed, not asserted.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections import defaultdict

from kio.schema.errors import ErrorCode

import tidegate.app  # noqa: F401 - declares the scripts that no API does
from bench.cluster import CONNECTIONS_STAY, Cluster
from tests.kit.member import Member, subscription
from tests.kit.wire import RawClient
from tests.support.barriers import stabilize
from tidegate.apis.registry import load_all
from tidegate.settings import Settings
from tidegate.store.scripts import library, registered
from tidegate.store.store import Store

SIZES = tuple(int(size) for size in os.environ.get("TIDEGATE_REBALANCE_SIZES", "100,500").split(","))
METADATA = subscription(["t"], b"x" * 2_000)
CALLS_PER_MEMBER_MAX = 3


async def script_times(store: Store) -> dict[str, list[int]]:
    """Microseconds of every script call since the log was reset, by script."""
    load_all()
    names = {script.sha: script.name for script in registered()}
    names.update((function, name) for name, function in library().functions.items())
    times: dict[str, list[int]] = defaultdict(list)
    for entry in await store.command("SLOWLOG", "GET", "-1"):
        command = entry[3]
        if command[0].upper() in (b"EVALSHA", b"FCALL"):
            times[names.get(command[1].decode(), command[1].decode())].append(entry[2])
    return times


async def rejoin(member: Member) -> None:
    """What a client does after a heartbeat response has shown the rebalance."""
    assert await member.heartbeat() is ErrorCode.rebalance_in_progress
    await member.round()


async def one_round(cluster: Cluster, store: Store, size: int) -> dict[str, list[int]]:
    """Form a group of `size`, add one member, and return what the second round cost."""
    group = f"cost-{size}"
    addresses = [broker.address for broker in cluster.brokers]
    members = [
        Member(
            await RawClient.connect(addresses[n % len(addresses)]),
            group,
            metadata=METADATA,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=120_000,
        )
        for n in range(size)
    ]
    await stabilize(*members, timeout_s=180)
    generations = {member.generation for member in members}
    await store.command("SLOWLOG", "RESET")

    newcomer = Member(await RawClient.connect(addresses[0]), group, metadata=METADATA, rebalance_timeout_ms=120_000)
    joining = asyncio.create_task(newcomer.round())
    while await members[0].heartbeat() is not ErrorCode.rebalance_in_progress:
        await asyncio.sleep(0.01)
    await asyncio.gather(*(rejoin(member) for member in members))
    await joining
    times = await script_times(store)

    assert {member.generation for member in [*members, newcomer]} == {generations.pop() + 1}
    assert all(member.assignment == member.member_id.encode() for member in [*members, newcomer])
    for member in [*members, newcomer]:
        await member.client.close()
    return times


async def test_round_costs_at_most_three_script_calls_a_member() -> None:
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "1500",
    }
    options = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"]
    with Cluster(brokers=3, settings=settings, server_options=options, constants=CONNECTIONS_STAY) as cluster:
        store = Store(Settings(redis_url=cluster.redis_url))
        await store.start()
        for size in SIZES:
            times = await one_round(cluster, store, size)
            counted = {
                name: calls
                for name, calls in times.items()
                if name.startswith("groups/") and name != "groups/heartbeat"
            }
            total = sum(len(calls) for calls in counted.values())
            print(f"{size} members: {total / (size + 1):.2f} script calls a member, heartbeats aside")
            for name, calls in sorted(times.items()):
                print(
                    f"  {name:28} {len(calls):6} calls  median {statistics.median(calls):8.0f} us"
                    f"  max {max(calls):8} us  {sum(calls) / (size + 1):8.1f} us a member"
                )
            assert {"groups/join_group", "groups/sync_group"} <= counted.keys()
            assert len(times.keys() - {script.name for script in registered()}) == 0, "a script without a name"
            assert total <= CALLS_PER_MEMBER_MAX * (size + 1)
        await store.close()
