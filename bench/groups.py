"""What groups cost: many forming at once, and one more member joining a large one."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from bench.endpoint import Endpoint
from bench.kafka_wire import MeasureFailed, Wire
from bench.members import Group, Member
from bench.processes import Meter, percentiles

_CONNECTS_AT_ONCE = 32
_TIMEOUT_S = 120.0
_INTERVAL_S = 0.25
_HEARTBEATS_PER_S = 4_000
"""Of all members together: one process that also reads the answers can send no more."""


async def _members(endpoint: Endpoint, group: Group, count: int, interval_s: float) -> list[Member]:
    """Members with open connections to the coordinator; nothing is joined yet."""
    bootstrap = await endpoint.wire()
    address = await endpoint.coordinator(bootstrap, group.group_id)
    bootstrap.close()
    connecting = asyncio.Semaphore(_CONNECTS_AT_ONCE)

    async def member() -> Member:
        async with connecting:
            wire = await Wire.connect(address)
            await wire.hello()
            return Member(group, wire, interval_s)

    return list(await asyncio.gather(*(member() for _ in range(count))))


async def _while_alive(waiting: asyncio.Future[Any], tasks: list[asyncio.Task[None]]) -> None:
    """Wait, unless a member fails first. Raises what it failed with."""
    done, _ = await asyncio.wait([waiting, *tasks], timeout=_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    if waiting in done:
        waiting.result()
        return
    waiting.cancel()
    for task in done:
        task.result()
    raise MeasureFailed(f"not stable in {_TIMEOUT_S:g} s")


async def groups(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """From the first JoinGroup until every one of `--groups` groups of `--members` is stable."""
    formed = [Group(f"bench-{args.run_id}-{number}", args.members) for number in range(args.groups)]
    interval_s = max(_INTERVAL_S, args.groups * args.members / _HEARTBEATS_PER_S)
    members = []
    for group in formed:
        members += await _members(endpoint, group, args.members, interval_s)
    meter = Meter(endpoint.pids)
    expired: list[float] = []

    async def follow(group: Group) -> None:
        await group.wait_stable()
        expired.append(time.perf_counter() - began)

    meter.start()
    began = time.perf_counter()
    tasks = [member.start() for member in members]
    waiting = asyncio.ensure_future(asyncio.gather(*(follow(group) for group in formed)))
    await _while_alive(waiting, tasks)
    meter.stop()
    forming = meter.figures(len(members))
    meter.start()
    await asyncio.sleep(args.seconds)
    meter.stop()
    steady = meter.figures(int(len(members) * args.seconds / interval_s))
    await asyncio.gather(*(member.stop() for member in members))
    return {
        "groups": args.groups,
        "members": args.members,
        "total_s": round(max(expired), 3),
        **forming,
        **percentiles(expired),
        "steady_cpu_us_per_heartbeat": steady.get("cpu_us_per_op"),
    }


async def rebalance(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """One more member joins a stable group: its first JoinGroup until all are synced in one generation."""
    group = Group(f"bench-{args.run_id}", args.members)
    members = await _members(endpoint, group, args.members, args.heartbeat_ms / 1_000)
    tasks = [member.start() for member in members]
    await _while_alive(asyncio.ensure_future(group.wait_stable()), tasks)
    took, cpu = [], []
    await asyncio.sleep(args.learn_s)
    for _ in range(args.tries):
        await asyncio.sleep((1.2 + random.random()) * args.heartbeat_ms / 1_000)
        (late,) = await _members(endpoint, group, 1, args.heartbeat_ms / 1_000)
        group.resize(args.members + 1)
        meter = Meter(endpoint.pids)
        meter.start()
        task = late.start()
        await _while_alive(asyncio.ensure_future(group.wait_stable()), [*tasks, task])
        took.append(meter.stop())
        cpu.append(meter.figures(1))
        await late.stop(leave=True)
        group.resize(args.members)
        await _while_alive(asyncio.ensure_future(group.wait_stable()), tasks)
    await asyncio.gather(*(member.stop() for member in members))
    found = {
        "members": args.members,
        "heartbeat_ms": args.heartbeat_ms,
        "ops": args.tries,
        **percentiles(took),
        "load": [cpu[0]["load"][0], cpu[-1]["load"][1]],
    }
    for name in ("cpu_us_per_op", "broker_cpu_us_per_op", "redis_cpu_us_per_op"):
        if name in cpu[0]:
            found[name] = round(sum(each[name] for each in cpu) / len(cpu), 1)
    return found
