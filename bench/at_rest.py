"""What a cluster costs while nothing happens: Redis commands a second, CPU, memory."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from typing import Any, Final

import redis
import uvloop
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from bench.endpoint import Endpoint, create_topics
from bench.hot import commit_frame
from bench.kafka_wire import INIT_PRODUCER_ID, OFFSET_COMMIT, MeasureFailed, Wire, decode, request
from bench.members import Group, Member
from bench.processes import cpu_seconds
from bench.start import resident_bytes

_TOPIC_PARTITIONS: Final = 500
_TOPICS_AT_ONCE: Final = 20
_COMMITS_AT_ONCE: Final = 32
_SAMPLED_S: Final = 30.0
"""Rest before the window: two rounds of lag samples, so that caches are as they stay; and the window's least length."""
_MIB: Final = 1 << 20


def parse(command: str) -> argparse.Namespace:
    """The options of `at-rest --partitions N --groups N --transactional-ids N`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--groups", type=int, default=0)
    parser.add_argument("--transactional-ids", type=int, default=0)
    return parser.parse_args(command.split()[1:])


def measure_at_rest(endpoint: Endpoint, cluster: Cluster, command: str, seconds: float) -> dict[str, Any]:
    """Figures of a cluster with that many empty partitions, groups without members and ids without a transaction."""
    options = parse(command)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(endpoint, cluster, options, max(seconds, _SAMPLED_S)))
    except (MeasureFailed, OSError, TimeoutError) as error:
        return {"measure": "at-rest", "error": f"{type(error).__name__}: {error}"}


async def _measure(endpoint: Endpoint, cluster: Cluster, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    await _create(endpoint, max(options.partitions, 1))
    await _commit(endpoint, options.groups)
    await _initialise(endpoint, options.transactional_ids)
    await asyncio.sleep(_SAMPLED_S)
    with contextlib.closing(redis.Redis(port=cluster.redis_port)) as server:
        before, cpu_s, began_s = _commands(server), sum(map(cpu_seconds, endpoint.pids)), time.monotonic()
        await asyncio.sleep(seconds)
        lasted_s = time.monotonic() - began_s
        commands, used_s = _commands(server) - before, sum(map(cpu_seconds, endpoint.pids)) - cpu_s
        redis_bytes = server.info("memory")["used_memory"]
    return {
        "measure": "at-rest", "partitions": options.partitions, "groups": options.groups,
        "transactional_ids": options.transactional_ids,
        "commands_per_s": round(commands / lasted_s), "cores": round(used_s / lasted_s, 4),
        "broker_mib": round(resident_bytes(cluster.brokers[0].pid) / _MIB), "redis_mib": round(redis_bytes / _MIB, 1),
    }  # fmt: skip


def _commands(server: redis.Redis) -> int:
    """Commands so far, those of scripts included."""
    return sum(stats["calls"] for stats in server.info("commandstats").values())


async def _create(endpoint: Endpoint, partitions: int) -> None:
    """Empty topics of at most 500 partitions. Raises MeasureFailed."""
    wire = await endpoint.wire()
    sizes = [min(_TOPIC_PARTITIONS, partitions - made) for made in range(0, partitions, _TOPIC_PARTITIONS)]
    for first in range(0, len(sizes), _TOPICS_AT_ONCE):
        counts = {f"rest-{first + n}": size for n, size in enumerate(sizes[first : first + _TOPICS_AT_ONCE])}
        await create_topics(wire, counts)
    wire.close()


async def _commit(endpoint: Endpoint, groups: int) -> None:
    """Groups without members, each with one committed offset. Raises MeasureFailed."""
    committing = asyncio.Semaphore(_COMMITS_AT_ONCE)
    wire = await endpoint.wire()
    wires = {address: await Wire.connect(address) for address in endpoint.bootstrap.split(",")}

    async def commit(number: int) -> None:
        async with committing:
            group = Group(f"rest-{number}", 0)
            to = wires[await endpoint.coordinator(wire, group.group_id)]
            answer = decode(OFFSET_COMMIT, await to.send(commit_frame(Member(group, to, 1.0), "rest-0", 1)))
            code = answer.topics[0].partitions[0].error_code
            if code is not ErrorCode.none:
                raise MeasureFailed(f"OffsetCommit: {code.name}")

    await asyncio.gather(*(commit(number) for number in range(groups)))
    for one in (wire, *wires.values()):
        one.close()


async def _initialise(endpoint: Endpoint, ids: int) -> None:
    """Transactional ids that have a producer id, and no transaction. Raises MeasureFailed."""
    wire = await endpoint.wire()
    for number in range(ids):
        answer = await wire.ask(request(
            INIT_PRODUCER_ID, transactional_id=f"rest-{number}", transaction_timeout=60_000, producer_id=-1,
            producer_epoch=-1,
        ))  # fmt: skip
        if answer.error_code is not ErrorCode.none:
            raise MeasureFailed(f"InitProducerId: {answer.error_code.name}")
    wire.close()
