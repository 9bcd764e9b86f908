"""What a round of lag samples costs: `python -m bench.lag_samples --groups 2000 --partitions 4 --entry-bytes 16384`.

Groups with commits, each on the partitions of one of `--topics` topics, whose last entries have so many bytes. Prints
seconds of CPU of the broker's side and of Redis for one round; the round is not spread here. `--page` makes what
`/metrics` has cluster metrics as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from bench.cluster import Cluster
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.groups.offsets import entry_json
from tidegate.monitoring.cluster_metrics import ClusterPage
from tidegate.monitoring.exporters import Brokers, ForeignNames
from tidegate.monitoring.lag_sampler import LagSampler
from tidegate.protocol.consumer_blobs import assigned_partitions, write_assignment
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.metrics import exposition, metrics


async def prepare(store: Store, args: argparse.Namespace) -> dict[str, Any]:
    """Topics with three entries in each partition; groups of one member, half of them two entries behind."""
    topics = {
        f"t{n}": SimpleNamespace(
            org="default",
            name=f"t{n}",
            topic_hex="0" * 32,
            topic_id=UUID(int=0),
            partition_count=args.partitions,
            config=SimpleNamespace(remote_storage=False),
            overrides={},
        )
        for n in range(args.topics)
    }
    batch = build_batch([NewRecord(b"v" * args.entry_bytes, timestamp=1)])
    for name in topics:
        for index in range(args.partitions):
            log = store.log_keys("default", name, index, "0" * 32)
            await store.command("HSET", log.meta, "state", "ready", "log_start", 0)
            for base in range(3):
                await store.command("XADD", log.log, f"{base}-1", "w", "x:1", "b", batch)
    for number in range(args.groups):
        keys, topic = store.group_keys("default", f"group-{number}"), f"t{number % args.topics}"
        text = entry_json(1 + 2 * (number % 2), -1, "", "") + ',"commit_time":1}'
        await store.command("HSET", keys.shard_keys.groups, keys.ref, "classic Stable consumer")
        await store.command("HSET", keys.group, "id", "x", "version", 1, "state", "Stable")
        await store.command("HSET", keys.assignments, "m", write_assignment({topic: range(args.partitions)}))
        fields = [item for index in range(args.partitions) for item in (f"{topic}:{index}", text)]
        await store.command("HSET", keys.offsets, *fields)
    return topics


async def redis_cpu_s(store: Store) -> float:
    """User and system time of the server so far."""
    reported = (await store.command("INFO", "cpu")).decode()
    values = dict(line.split(":", 1) for line in reported.splitlines() if ":" in line)
    return float(values["used_cpu_user"]) + float(values["used_cpu_sys"])


async def measure(url: str, args: argparse.Namespace) -> dict[str, float]:
    """The second round, with everything warm."""
    settings = Settings.model_validate({"redis_url": url, "lag_sample_interval_ms": 1, "metrics_groups_max": 10**6})
    store = Store(settings)
    await store.start()
    topics = await prepare(store, args)

    def find(_: str, name: str) -> Any:
        return topics.get(name)

    brokers = [BrokerInfo(node, {"PLAINTEXT": ("localhost", 9092)}, None, "", "serving") for node in (1, 2, 3)]
    foreign = ForeignNames(Brokers(lambda: brokers, lambda: brokers, str), find)
    page = ClusterPage(store, settings, lambda: list(topics.values()), foreign)
    sampler = LagSampler(
        store, settings, find, assigned_partitions, lambda: "1", page if args.page else None, handover_ms=0
    )
    metrics.cluster_page = lambda: page.text
    await sampler.sample()
    await store.command("CONFIG", "RESETSTAT")
    before, redis_s, cpu_s = sampler.taken, await redis_cpu_s(store), time.process_time()
    await sampler.sample()
    reported = {
        "groups": sampler.taken - before,
        "partitions": args.partitions * (sampler.taken - before),
        "wall_s": sampler.round_s,
        "broker_cpu_s": time.process_time() - cpu_s,
        "redis_cpu_s": await redis_cpu_s(store) - redis_s,
        "stream_bytes": await store.command("MEMORY", "USAGE", store.cluster_keys.lag) / (sampler.taken or 1),
    }
    await store.close()
    scraped_s = time.perf_counter()
    exposition("")
    reported |= {"scrape_s": time.perf_counter() - scraped_s, "page_bytes": sum(map(len, page.text))}
    return {name: round(value, 4) for name, value in reported.items()}


def main() -> int:
    """One JSON line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lag_samples", description=__doc__)
    for name, default in (("groups", 2000), ("partitions", 4), ("topics", 50), ("entry-bytes", 16_384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--page", action="store_true", help="and the cluster metrics of /metrics")
    args = parser.parse_args()
    with Cluster(0) as cluster:
        print(json.dumps(asyncio.run(measure(cluster.redis_url, args))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
