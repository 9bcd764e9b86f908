"""Heartbeats beside heavy work: bulk produce, rebalances of a large group, Metadata of many topics."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import uvloop
from kio.schema.errors import ErrorCode

from bench import builds
from bench.cluster import REPOSITORY, Cluster
from bench.endpoint import Endpoint, create_topics
from bench.kafka_wire import METADATA, MeasureFailed, Wire, encode, request
from bench.members import Group, Member
from bench.processes import Meter, percentiles, wait_quiet
from bench.report import machine

_TOPICS_AT_ONCE: Final = 500
_ERROR_AT: Final = 9  # of a HeartbeatResponse v4
_METADATA_PAUSE_S: Final = 0.25
_SETTINGS: Final = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `mixed`."""
    command.add_argument("--seconds", type=float, default=20.0, help="length of the window")
    command.add_argument("--members", type=int, default=100, help="whose heartbeats are timed, each in its own group")
    command.add_argument("--interval-ms", type=int, default=100, help="between two heartbeats of a member")
    command.add_argument("--joining", type=int, default=1_000, help="members of the group that rebalances")
    command.add_argument("--topics", type=int, default=10_000, help="that Metadata lists")
    command.add_argument("--wait-quiet", type=float, default=0.0, help="seconds to wait for the neighbours")


@contextlib.contextmanager
def _beside(bootstrap: str, *commands: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Measures of the bench as load, each in a process of its own, ended afterwards."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "bench", *command.split(), "--bootstrap", bootstrap],
            cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]  # fmt: skip
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


async def _create_topics(endpoint: Endpoint, count: int) -> None:
    wire = await endpoint.wire()
    for first in range(0, count, _TOPICS_AT_ONCE):
        numbers = range(first, min(first + _TOPICS_AT_ONCE, count))
        await create_topics(wire, {f"mixed-{number}": 1 for number in numbers})
    wire.close()


async def _list_topics(endpoint: Endpoint) -> int:
    """Ask for all topics, again and again, until cancelled; the replies are not decoded."""
    message = request(
        METADATA, topics=None, allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    wire, frame = await endpoint.wire(), encode(message)
    while True:
        await wire.send(frame)
        await asyncio.sleep(_METADATA_PAUSE_S)


async def _member(endpoint: Endpoint, number: int, run_id: str) -> Member:
    bootstrap, group = await endpoint.wire(), Group(f"mixed-{run_id}-{number}", 1)
    member = Member(group, await Wire.connect(await endpoint.coordinator(bootstrap, group.group_id)), 1.0)
    bootstrap.close()
    await member.wire.hello()
    await member.stabilize_alone()
    return member


async def _send_heartbeats(member: Member, interval_s: float, latencies: list[float]) -> None:
    """Heartbeats of one member at an interval, not in step with others', until cancelled. Raises MeasureFailed."""
    frame = member.heartbeat_frame()
    await asyncio.sleep(interval_s * random.random())
    while True:
        sent_s = time.perf_counter()
        payload = await member.wire.send(frame)
        latencies.append(time.perf_counter() - sent_s)
        (code,) = struct.unpack_from(">h", payload, _ERROR_AT)
        if code:
            raise MeasureFailed(f"Heartbeat: {ErrorCode(code).name}")
        await asyncio.sleep(max(sent_s + interval_s - time.perf_counter(), 0))


async def _window(endpoint: Endpoint, members: list[Member], args: argparse.Namespace) -> dict[str, Any]:
    """Time the heartbeats of a window. Raises MeasureFailed."""
    latencies: list[float] = []
    heartbeats = [
        asyncio.create_task(_send_heartbeats(member, args.interval_ms / 1_000, latencies)) for member in members
    ]
    await asyncio.sleep(1)
    latencies.clear()
    meter = Meter(endpoint.pids)
    meter.start()
    done, _ = await asyncio.wait(heartbeats, timeout=args.seconds, return_when=asyncio.FIRST_COMPLETED)
    meter.stop()
    for task in heartbeats:
        task.cancel()
    await asyncio.gather(*heartbeats, return_exceptions=True)
    for task in done:
        task.result()
    return {**meter.figures(max(len(latencies), 1)), **percentiles(latencies)}


async def _measure(endpoint: Endpoint, args: argparse.Namespace, run_id: str) -> list[dict[str, Any]]:
    await _create_topics(endpoint, args.topics)
    members = [await _member(endpoint, number, run_id) for number in range(args.members)]
    alone = await _window(endpoint, members, args)
    load = (
        "batches --megabytes 1000000 --batch-records 64 --size 1000",
        f"rebalance --members {args.joining} --tries 100000 --heartbeat-ms 1000",
    )
    with _beside(endpoint.bootstrap, *load) as running:
        listing = asyncio.create_task(_list_topics(endpoint))
        await asyncio.sleep(5)
        busy = await _window(endpoint, members, args)
        ended = [process.args for process in running if process.poll() is not None]
        listing.cancel()
        await asyncio.gather(listing, return_exceptions=True)
    if ended:
        raise MeasureFailed(f"the load ended early: {ended}")
    return [{"beside": "nothing", **alone}, {"beside": "bulk produce, rebalances, Metadata", **busy}]


def _longest_stall_s(admin_port: int) -> float | None:
    """The longest stall of the event loop, as the broker reports it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("tidegate_event_loop_stall_max_seconds"):
                return float(line.split()[-1])
    return None


def main(args: argparse.Namespace) -> int:
    """Time heartbeats alone and beside the load; print both. 1 when a measure failed."""
    with Cluster(1, _SETTINGS) as cluster:
        endpoint = Endpoint(cluster.bootstrap, cluster.pids)
        wait_quiet(args.wait_quiet)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                rows = runner.run(_measure(endpoint, args, str(time.monotonic_ns())))
        except (MeasureFailed, OSError, TimeoutError) as error:
            print(json.dumps({"measure": "mixed", "error": f"{type(error).__name__}: {error}"}), flush=True)
            return 1
        about = {"machine": machine(), "server": builds.server(cluster.redis_port)}
        stall_s = _longest_stall_s(cluster.brokers[0].admin_port)
    for row in rows:
        print(json.dumps({"measure": "mixed", **row}), flush=True)
    print(json.dumps({"longest_stall_s": stall_s, **about}), flush=True)
    return 0
