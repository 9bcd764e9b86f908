"""Requests that a coordinator answers all day: heartbeats, commits, offset fetches; many in flight, each checked."""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from kio.schema.errors import ErrorCode

from bench.endpoint import Endpoint
from bench.kafka_wire import HEARTBEAT, OFFSET_COMMIT, OFFSET_FETCH, VERSIONS, MeasureFailed, Wire, decode, encode
from bench.members import Group, Member
from bench.processes import Meter, percentiles

_CONNECTS_AT_ONCE = 32
_SAMPLED = 4


class Flood(asyncio.Protocol):
    """Keeps `depth` identical requests in flight; every answer must equal `good` byte by byte."""

    def __init__(self, api: int, frame: bytes, good: bytes, depth: int) -> None:
        self.api, self.frame, self.good, self.depth = api, frame, good, depth
        self.count = 0
        self.latencies: list[float] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running = False
        self._buffer = b""
        self._sent: deque[float] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def start(self) -> None:
        """Send the first requests."""
        self.running = True
        self._send(self.depth)

    def _send(self, count: int) -> None:
        assert self._transport is not None
        self._sent.extend([time.perf_counter()] * count)
        self._transport.write(self.frame * count)

    def data_received(self, data: bytes) -> None:
        """Check what came, count it, send as many again."""
        buffer = self._buffer + data
        count = len(buffer) // len(self.good)
        whole = count * len(self.good)
        if buffer[:whole] != self.good * count:
            self._fail(buffer)
            return
        self._buffer = buffer[whole:]
        now = time.perf_counter()
        for number in range(count):
            sent = self._sent.popleft()
            if self.running and (self.count + number) % _SAMPLED == 0:
                self.latencies.append(now - sent)
        self.count += count
        if self.running and count:
            self._send(count)

    def _fail(self, buffer: bytes) -> None:
        self.running = False
        size = int.from_bytes(buffer[:4], "big")
        reported = repr(decode(self.api, buffer[4 : 4 + size]) if len(buffer) >= 4 + size else buffer[:64])
        if not self.failed.done():
            self.failed.set_exception(MeasureFailed(f"an answer differs: {reported[:300]}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Only expected after the end."""
        if self.running and not self.failed.done():
            self.failed.set_exception(MeasureFailed(f"connection closed: {error}"))

    def close(self) -> None:
        """Close the connection."""
        self.running = False
        self.failed.cancel()
        if self._transport is not None:
            self._transport.close()


def commit_frame(member: Member, topic: str, partitions: int) -> bytes:
    """A commit of that many partitions by a member."""
    return encode(member.commit_request({topic: dict.fromkeys(range(partitions), 42)}))


def fetch_frame(member: Member, topic: str, partitions: int) -> bytes:
    """A fetch of what `commit_frame` committed."""
    return encode(member.offsets_request(topic, range(partitions), VERSIONS[OFFSET_FETCH]))


def _errors(api: int, reported: Any) -> set[ErrorCode]:
    codes = {reported.error_code} if api != OFFSET_COMMIT else set()
    for topic in getattr(reported, "topics", ()):
        codes |= {part.error_code for part in topic.partitions}
    return codes - {ErrorCode.none}


async def _prepare(
    endpoint: Endpoint, api: int, number: int, topic: str, args: argparse.Namespace, connecting: asyncio.Semaphore
) -> Flood:
    """A member of a group of its own, and the connection that floods for it."""
    async with connecting:
        bootstrap = await endpoint.wire()
        group = Group(f"bench-{args.run_id}-{number}", 1)
        address = await endpoint.coordinator(bootstrap, group.group_id)
        bootstrap.close()
        member = Member(group, await Wire.connect(address), 1.0)
        await member.stabilize_alone()
        if api == HEARTBEAT:
            frame = member.heartbeat_frame()
        else:
            frame = commit_frame(member, topic, args.partitions)
            await member.wire.send(frame)
            if api == OFFSET_FETCH:
                frame = fetch_frame(member, topic, args.partitions)
        payload = await member.wire.send(frame)
        errors = _errors(api, decode(api, payload))
        if errors:
            raise MeasureFailed(f"refused: {errors}")
        member.wire.close()
        return await flood_like(address, api, frame, payload, args.depth)


async def measured(endpoint: Endpoint, args: argparse.Namespace, floods: Sequence[Flood]) -> dict[str, Any]:
    """Let all flood for a while; what that took. Raises what the first one failed with."""
    meter = Meter(endpoint.pids)
    for flood in floods:
        flood.start()
    await asyncio.sleep(args.warmup)
    before = sum(flood.count for flood in floods)
    for flood in floods:
        flood.latencies.clear()
    meter.start()
    failures = [flood.failed for flood in floods]
    await asyncio.wait(failures, timeout=args.seconds, return_when=asyncio.FIRST_COMPLETED)
    meter.stop()
    ops = sum(flood.count for flood in floods) - before
    latencies = [latency for flood in floods for latency in flood.latencies]
    failed = [future.exception() for future in failures if future.done()]
    for flood in floods:
        flood.close()
    await asyncio.sleep(0.05)
    if failed and failed[0] is not None:
        raise failed[0]
    return {"connections": args.connections, "depth": args.depth, **meter.figures(ops), **percentiles(latencies)}


async def flood_like(address: str, api: int, frame: bytes, good: bytes, depth: int) -> Flood:
    """A connection that floods with a request whose answer is known."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    answer = struct.pack(">i", len(good)) + good
    _, flood = await loop.create_connection(lambda: Flood(api, frame, answer, depth), host, int(port))
    return flood


async def _flood(endpoint: Endpoint, args: argparse.Namespace, api: int) -> dict[str, Any]:
    partitions = max(args.partitions, 1)
    async with endpoint.topic("hot", partitions) as (topic, _):
        connecting = asyncio.Semaphore(_CONNECTS_AT_ONCE)
        floods = await asyncio.gather(
            *(_prepare(endpoint, api, number, topic, args, connecting) for number in range(args.connections))
        )
        return await measured(endpoint, args, floods)


async def heartbeats(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """Members of groups of one, each sending heartbeats as fast as they are answered."""
    return await _flood(endpoint, args, HEARTBEAT)


async def commits(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """The same with commits of `--partitions` partitions each."""
    return {"partitions": args.partitions, **await _flood(endpoint, args, OFFSET_COMMIT)}


async def offset_fetches(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """The same with fetches of what was committed."""
    return {"partitions": args.partitions, **await _flood(endpoint, args, OFFSET_FETCH)}
