"""A real run of a few minutes for the plots of docs/pipeline-history.md: lag with a stuck member, a rebalance storm.

`python -m bench.history --out docs/img` starts two brokers, produces, and lets two groups have their trouble; then
the jobs read it and `tidegate pipeline plot` draws it. `--launcher` is put before the commands that start Spark.

Group `billing`: one member reads as fast as records come, one too slowly for a while, and one hangs: it heartbeats, and
hands out and commits nothing more, until it continues. Group `shipping`: processes that die without leaving and are
started again, and one that leaves and comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import CONNECTIONS_STAY, Cluster
from bench.stuck_member import Member

SETTINGS: Final = {
    "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "1000",
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "300",
    "TIDEGATE_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
}
JOBS: Final = {
    "TIDEGATE_PIPELINE_LAG_WINDOW": "5",
    "TIDEGATE_PIPELINE_LAG_WATERMARK": "3",
    "TIDEGATE_PIPELINE_STORMS_WINDOW": "30",
    "TIDEGATE_PIPELINE_STORMS_WATERMARK": "3",
}
TOPIC: Final = "orders"
PARTITIONS: Final = 4
RECORDS_PER_S: Final = 200


@dataclass(frozen=True, slots=True)
class ConsumerRate:
    """How a member of `billing` reads: records a second at most between two parts of the run, without bound else."""

    client_id: str
    records_per_s: float | None = None
    begins: float = 0.0
    ends: float = 0.0


MEMBERS: Final = (
    ConsumerRate("quick"),
    ConsumerRate("slow", records_per_s=20, begins=0.25, ends=0.65),
    ConsumerRate("hangs", records_per_s=0, begins=0.35, ends=0.8),
)


async def produce(bootstrap: str, seconds: float) -> None:
    """Records at an even rate, to all partitions in turn."""
    began = time.monotonic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        sent = 0
        while (elapsed := time.monotonic() - began) < seconds:
            while sent < elapsed * RECORDS_PER_S:
                await producer.send(TOPIC, b"order %d" % sent, partition=sent % PARTITIONS)
                sent += 1
            await asyncio.sleep(0.05)


async def consume(bootstrap: str, rate: ConsumerRate, seconds: float) -> None:
    """One member; commits what it has read every second, unless it hangs."""
    began = time.monotonic()
    async with AIOKafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id="billing", client_id=rate.client_id, enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:  # fmt: skip
        while (part := (time.monotonic() - began) / seconds) < 1:
            hindered = rate.records_per_s is not None and rate.begins <= part < rate.ends
            most = round(rate.records_per_s or 0) if hindered else None
            step_ends = time.monotonic() + 1
            if most != 0 and await consumer.getmany(timeout_ms=500, max_records=most):
                await consumer.commit()
            if hindered:
                await asyncio.sleep(step_ends - time.monotonic())


async def flap(address: str, seconds: float) -> None:
    """The members of `shipping`: two that stay, two that crash and come back, one that leaves and comes back."""
    steady = [await Member.connect(address, "shipping", f"pod-{name}", topics=(TOPIC,)) for name in "ab"]
    following = [asyncio.ensure_future(member.follow()) for member in steady]
    began = time.monotonic()
    await asyncio.sleep(0.3 * seconds)
    iteration = 0
    while time.monotonic() - began < 0.65 * seconds:
        name = ("pod-c", "pod-d", "pod-c", "pod-e")[iteration % 4]
        passing = await Member.connect(address, "shipping", name, topics=(TOPIC,), session_timeout_ms=1_500)
        await passing.round()
        await asyncio.sleep(1)
        if name == "pod-e":
            await passing.leave("scaled down")
        passing.close()
        await asyncio.sleep(2.5)
        iteration += 1
    await asyncio.sleep(max(began + seconds - time.monotonic(), 0))
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for member in steady:
        member.close()


async def live(cluster: Cluster, seconds: float) -> None:
    """All of it at once."""
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    await admin.close()
    bootstrap = cluster.bootstrap
    members = (consume(bootstrap, rate, seconds) for rate in MEMBERS)
    await asyncio.gather(produce(bootstrap, seconds), flap(cluster.brokers[0].address, seconds), *members)
    await asyncio.sleep(int(JOBS["TIDEGATE_PIPELINE_LAG_WINDOW"]) + int(JOBS["TIDEGATE_PIPELINE_LAG_WATERMARK"]) + 2)


def run(arguments: Sequence[str], environment: dict[str, str], launcher: str = "") -> None:
    """One `tidegate pipeline …`; it must succeed."""
    print("$ tidegate pipeline", *arguments, flush=True)
    command = [*shlex.split(launcher), str(Path(sys.executable).with_name("tidegate")), "pipeline", *arguments]
    subprocess.run(command, env=environment, check=True)


def main() -> int:
    """Make the run, the tables and the plots."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="folder of the plots")
    parser.add_argument("--tables", type=Path, help="where to keep the tables; [default: nowhere]")
    parser.add_argument("--launcher", default="", help="put before commands that start Spark")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-history-") as passing,
        Cluster(2, SETTINGS, constants=CONNECTIONS_STAY) as cluster,
    ):
        folder, began = (args.tables or Path(passing)).absolute(), datetime.now(UTC)
        asyncio.run(live(cluster, args.seconds))
        span = ["--from", f"{began:%FT%T}", "--to", f"{began + timedelta(seconds=args.seconds):%FT%T}"]
        environment = {
            **os.environ,
            **JOBS,
            "TIDEGATE_PIPELINE_REDIS_URL": cluster.redis_url,
            "TIDEGATE_PIPELINE_ARCHIVE_PATH": f"{folder}/archive",
            "TIDEGATE_PIPELINE_CHECKPOINT_PATH": f"{folder}/checkpoints",
        }
        for job in ("lag", "timeline", "storms"):
            run([job], environment, args.launcher)
        run(["plot", "lag", "--group", "billing", *span, "--out", str(args.out / "lag.png")], environment)
        run(["plot", "storm", "--group", "shipping", *span, "--out", str(args.out / "storm.png")], environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
