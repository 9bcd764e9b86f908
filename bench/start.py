"""Start and memory of one broker: when it answers its first request, what that cost, and what it occupies then."""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import json
import os
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import builds
from bench.cluster import REPOSITORY, BrokerProcess, Cluster
from bench.kafka_wire import Wire
from bench.members import Group, Member
from bench.processes import cpu_seconds, wait_quiet
from bench.report import machine

_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.005
_REST_S: Final = 4.0
"""What is imported and prepared after the start is done by then."""
_CONNECTS_AT_ONCE: Final = 32
_MIB: Final = 1 << 20


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `start`."""
    command.add_argument("--rounds", type=int, default=5, help="starts; the median counts")
    command.add_argument("--connections", type=int, default=1_000, help="members, each with a connection and a group")
    command.add_argument("--wait-quiet", type=float, default=0.0, help="seconds to wait for the neighbours, each time")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_answer(broker: BrokerProcess) -> float:
    """Start a broker; seconds until it answers ApiVersions. Raises RuntimeError with its log's end."""
    began_s = time.perf_counter()
    broker.start()
    while time.perf_counter() - began_s < _START_TIMEOUT_S:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", broker.port), 1) as sock:
            sock.sendall(_API_VERSIONS)
            if sock.recv(4):
                return time.perf_counter() - began_s
        time.sleep(_POLL_S)
    raise RuntimeError(f"{broker.name} did not answer:\n{broker.log_path.read_text()[-2000:]}")


async def _members(address: str, count: int, run_id: str) -> list[Wire]:
    """That many connections as clients have them: ApiVersions, a group joined and synced, one heartbeat."""
    connecting = asyncio.Semaphore(_CONNECTS_AT_ONCE)

    async def connect(number: int) -> Wire:
        async with connecting:
            wire = await Wire.connect(address)
            await wire.hello()
            member = Member(Group(f"bench-start-{run_id}-{number}", 1), wire, 1.0)
            await member.stabilize_alone()
            await wire.send(member.heartbeat_frame())
            return wire

    return await asyncio.gather(*(connect(number) for number in range(count)))


async def _with_members(broker: BrokerProcess, count: int, run_id: str) -> int:
    """Resident memory while that many members are connected."""
    wires = await _members(broker.address, count, run_id)
    await asyncio.sleep(1)
    occupied = resident_bytes(broker.pid)
    for wire in wires:
        wire.close()
    return occupied


def _measured(cluster: Cluster, connections: int, round_number: int) -> dict[str, float]:
    """One start. Seconds and MiB."""
    name = f"start-{round_number}"
    broker = BrokerProcess(cluster.redis_url, cluster.directory, name, cluster.settings)
    try:
        wall_s = first_answer(broker)
        found = {"first_answer_s": wall_s, "cpu_s": cpu_seconds(broker.pid)}
        broker.wait_ready()
        time.sleep(_REST_S)
        found["rest_cpu_s"] = cpu_seconds(broker.pid)
        found["rest_mib"] = resident_bytes(broker.pid) / _MIB
        if connections:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                occupied = runner.run(_with_members(broker, connections, f"{os.getpid()}-{round_number}"))
            found["connected_mib"] = occupied / _MIB
        return {key: round(value, 3) for key, value in found.items()}
    finally:
        broker.drain()


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}


def main(args: argparse.Namespace) -> int:
    """Start a broker several times beside one Valkey; print each round and the medians."""
    compileall.compile_dir(REPOSITORY / "broker", quiet=2)  # as pip does it with what it installs
    settings = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0", "TIDEGATE_SHUTDOWN_TIMEOUT_MS": "1000"}
    rows: list[dict[str, float]] = []
    with Cluster(0, settings) as cluster:
        server = builds.server(cluster.redis_port)
        for round_number in range(args.rounds):
            quiet = wait_quiet(args.wait_quiet)
            rows.append(_measured(cluster, args.connections, round_number))
            line: dict[str, Any] = {"round": round_number, "quiet": quiet, **rows[-1], "load": os.getloadavg()[0]}
            print(json.dumps(line), flush=True)
    print(
        json.dumps({"median": medians(rows), "connections": args.connections, "machine": machine(), "server": server}),
        flush=True,
    )
    return 0
