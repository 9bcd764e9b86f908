"""Incidents made on real brokers by real clients, and found by the pipeline's jobs.

Three groups rebalance again and again (a process that crashes and is started again, two processes with one
group.instance.id and different assignors, a client that is too slow between two polls); one consumer stops committing
while producers continue; one seeks back and commits. Beside them one group does nothing wrong. Then the jobs `lag`,
`timeline`, `storms`, `commits` and `usage` run on what the brokers wrote, with windows of seconds for minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import CONNECTIONS_STAY, REPOSITORY, Cluster
from bench.incidents_found import Claim, claims
from bench.stuck_member import Member

BROKERS: Final = {
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "300",
    "TIDEGATE_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
    "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
    "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "1000",
}
WINDOW_S: Final = 20
"""Of storms: both what a storm is counted in and the quiet after it."""
PIPELINE: Final = f"""
[storms]
window = {WINDOW_S}
threshold = 5
watermark = 1
[commits]
interval = 2
warmup = 5
silence = 4
watermark = 2
[lag]
window = 4
stuck_windows = 3
watermark = 1
[usage]
interval = 10
watermark = 1
[spark]
"driver.memory" = "1g"
"sql.shuffle.partitions" = "1"
"ui.enabled" = "false"
"""
TOPIC: Final = "orders"
PARTITIONS: Final = 4
_STEP_S: Final = 0.5


class Play:
    """Everybody who plays, for some seconds."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._address, self._seconds = cluster.brokers[0].address, seconds
        self._ends_s = 0.0
        self.produced = 0

    async def run(self) -> None:
        """Make it all, side by side; then a quiet spell, after which storms are over."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        await admin.close()
        self._ends_s = time.monotonic() + self._seconds
        await asyncio.gather(
            self._produce(),
            self._consume("steady"),
            self._consume("stuck", stops_after=0.4),
            self._consume("rewinds", seeks_after=0.6),
            self._crash_loop(),
            self._twins(),
            self._slow_poll(),
        )
        await asyncio.sleep(WINDOW_S + 8)

    @property
    def _left(self) -> float:
        """The part of the play that is still to come."""
        return max(self._ends_s - time.monotonic(), 0) / self._seconds

    async def _produce(self) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._address) as producer:
            while self._left:
                for _ in range(5):
                    await producer.send_and_wait(TOPIC, b"record", partition=self.produced % PARTITIONS)
                    self.produced += 1
                await asyncio.sleep(_STEP_S / 2)

    async def _consume(self, group: str, *, stops_after: float = 2, seeks_after: float = 2) -> None:
        """Read and commit, twice a second; from some part of the play on no more, or from the begin again, once."""
        consumer = AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=self._address,
            group_id=group,
            client_id=f"{group}-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer:
            while self._left or (group == "steady" and await self._behind(consumer)):
                await consumer.getmany(timeout_ms=int(_STEP_S * 1000))
                played = 1 - self._left
                if played > seeks_after:
                    seeks_after = 2
                    await consumer.seek_to_beginning()
                    await consumer.commit(dict.fromkeys(consumer.assignment(), 1))
                elif played < stops_after and consumer.assignment():
                    await consumer.commit()
                await asyncio.sleep(_STEP_S / 2)

    async def _behind(self, consumer: AIOKafkaConsumer) -> int:
        """Records that the group has not committed yet."""
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        ends = await consumer.end_offsets(partitions)
        return sum([ends[one] - (await consumer.committed(one) or 0) for one in partitions])

    async def _crash_loop(self) -> None:
        """A process dies without leaving, and is started again when its session is over."""
        steady = await self._member("crash-loop", "pod-a")
        following = asyncio.ensure_future(steady.follow())
        while self._left:
            crashing = await self._member("crash-loop", "pod-b", session_timeout_ms=1_000)
            await crashing.round()
            crashing.close()
            await asyncio.sleep(2)
        await self._end(following, steady)

    async def _twins(self) -> None:
        """Two versions of a service run under one instance id; they prefer different assignors."""
        versions = {"version-1": ("range", "roundrobin"), "version-2": ("roundrobin", "range")}
        for name in cycle(versions):
            twin = await self._member("twins", name, instance_id="shard-1", protocols=versions[name])
            await twin.round()
            await asyncio.sleep(1)
            over = not self._left
            if over:
                await twin.leave("")  # else the end of its session would be one generation more
            twin.close()
            if over:
                return

    async def _slow_poll(self) -> None:
        """A client leaves by itself whenever its thread does not poll, and comes back when it does."""
        steady = await self._member("slow-poll", "etl-1")
        following = asyncio.ensure_future(steady.follow())
        slow = await self._member("slow-poll", "etl-2")
        while self._left:
            await slow.round()
            await asyncio.sleep(1)
            await slow.leave("consumer poll timeout has expired.")
            await asyncio.sleep(1)
        await self._end(following, steady, slow)

    async def _member(self, group: str, name: str, **traits: Any) -> Member:
        return await Member.connect(self._address, group, name, topics=(TOPIC,), end=0, **traits)

    @staticmethod
    async def _end(following: asyncio.Future[None], *members: Member) -> None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        for member in members:
            if member.member_id:
                await member.leave("")
            member.close()


def run_jobs(redis_url: str, folder: Path, launcher: Sequence[str] = ()) -> None:
    """The jobs, in a process of their own; `launcher` goes before its command. Raises CalledProcessError."""
    config = folder / "pipeline.toml"
    paths = {"redis.url": redis_url, "archive.path": folder, "checkpoint.path": folder / "checkpoints"}
    own = "".join(f'{name} = "{value}"\n' for name, value in paths.items())
    config.write_text(f"{own}{PIPELINE}")
    command = [*launcher, sys.executable, "-m", "bench.incidents_jobs", str(config)]
    subprocess.run(command, cwd=REPOSITORY, check=True)


def generations(redis_url: str) -> Mapping[str, int]:
    """Group -> its generation, as the groups themselves have it."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        names = [name for name in client.scan_iter("tidegate:{co:*}:group:default:*") if client.type(name) == "hash"]
        kept = {name.rpartition(":")[2]: client.hget(name, "generation") for name in names}
    return {group: int(generation) for group, generation in kept.items() if generation is not None}


def play(folder: Path, seconds: float, launcher: Sequence[str] = ()) -> list[Claim]:
    """Make the incidents and run the jobs; what should have been found, and whether it was."""
    with Cluster(brokers=2, settings=BROKERS, constants=CONNECTIONS_STAY) as cluster:
        stage = Play(cluster, seconds)
        asyncio.run(stage.run())
        run_jobs(cluster.redis_url, folder, launcher)
        return claims(folder, stage.produced, generations(cluster.redis_url))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m bench incidents`."""
    parser.add_argument("--seconds", type=float, default=60, help="how long clients play  [default: 60]")
    parser.add_argument("--launcher", default="", help="what goes before the command that starts Spark")
    parser.add_argument("--into", type=Path, help="where the tables go  [default: a new folder]")


def main(options: argparse.Namespace) -> int:
    """Play, print the table of what was found; 1 where something was not."""
    folder: Path = (options.into or Path(tempfile.mkdtemp(prefix="tidegate-incidents-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found = play(folder, options.seconds, shlex.split(options.launcher))
    width = max(len(one.what) for one in found)
    for one in found:
        print(f"{'found ' if one.found else 'MISSED'}  {one.what:{width}}  {one.reported}")
    print(f"the tables are in {folder}")
    return 0 if all(one.found for one in found) else 1
