"""The source `tidegate` beside Spark's own Kafka connector over Apache Kafka: one Spark, the same records, in turns.

A measure is a stream with the trigger AvailableNow, from the earliest offset to the end, in one warm session of two
cores. Its cost is wall time, and CPU seconds of Spark with its Python workers and of what serves the records: wall
alone says much of the neighbours, as rows cross a pipe between two processes here. Medians of all rounds count.

All works take an hour: `--only` with `--raw` measures some and adds their lines to a file, `--page` makes the page of
such files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import decoder, spark_report
from bench.cluster import Cluster
from bench.jars import NEWEST_KAFKA_VERSION, PeerUnavailable, connector_jars
from bench.kafka_peer import KafkaPeer
from bench.processes import tree_cpu_seconds
from bench.spark_report import ARCHIVE, COLD, CONNECTOR, SINKS, TOPIC
from bench.spark_topics import FEW, Work, create, drop, fill, works, written
from tidegate_pipeline.archive import selection
from tidegate_pipeline.jobs.archive import ArchiveJob
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.session import spark_session
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.topics import read_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_QUERY_TIMEOUT_S: Final = 900
_WARM_SCALE: Final = 0.05
_MICRO_BATCH: Final = "64g"
_MICRO_BATCH_BYTES: Final = 64 << 30
_SESSION: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One way to read: a format with its options, and the processes that serve it."""

    name: str
    format: str
    options: Mapping[str, str]
    bootstrap: str
    pids: Sequence[int]


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `spark`."""
    command.add_argument("--scale", type=float, default=0.5, help="1: 4 M rows of 100 B, 2 M of 1 KiB")
    command.add_argument("--rounds", type=int, default=5, help="medians count")
    topics = ",".join(work.topic for work in (*works(1), *written(1)))
    command.add_argument("--only", default="", help=f"some of the topics: {topics}")
    command.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark")
    command.add_argument("--decoder-seconds", type=float, default=1.0, help="for each way and work of the decoder")
    command.add_argument("--no-kafka", action="store_true", help="leave the peer out")
    command.add_argument("--out", type=Path, default=Path("build/benchmarks-pipeline.md"), help="where the page goes")
    command.add_argument("--raw", type=Path, help="add every JSON line to this file")
    command.add_argument("--page", action="store_true", help="measure the decoder only; the rest is in --raw")


class Bench:
    """A session, the sides, and a folder for what queries write."""

    def __init__(self, spark: SparkSession, sides: Sequence[Side], folder: Path) -> None:
        self.spark = spark
        self.sides = sides
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._spark_pid: int = gateway.proc.pid

    def read(self, side: Side, work: Work, sink: str) -> dict[str, Any]:
        """One query of all that a topic holds, to `noop` or `parquet`."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        rows = self.spark.readStream.format(side.format).options(**side.options)
        writer = (
            rows.option("subscribe", work.topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format(sink)
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
        )
        path = {"path": str(place / "rows")} if sink == "parquet" else {}
        with self._measured(side, work.topic, sink) as figures:
            query = writer.start(**path)
            figures["rows"] = _ended(query)
        if figures["rows"] != work.rows:
            raise RuntimeError(f"{side.name} read {figures['rows']} of {work.rows} rows of {work.topic}")
        shutil.rmtree(place)
        return figures

    def write(self, side: Side, work: Work) -> None:
        """One batch query that writes a work's rows to its topic."""
        rows = self.spark.range(0, work.rows, 1, work.partitions).selectExpr(
            "CAST(id AS STRING) AS key", f"rpad(CAST(id AS STRING), {work.value_bytes}, 'x') AS value"
        )
        options = {"kafka.bootstrap.servers": side.bootstrap, "topic": work.topic}
        with self._measured(side, work.topic, TOPIC) as figures:
            rows.write.format(side.format).options(**options).mode("append").save()
            figures["rows"] = work.rows

    @contextmanager
    def archived(self, side: Side, work: Work) -> Iterator[Side]:
        """The job that archives a topic's batches as they are; then the side that reads its files."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        url = side.options["redis.url"]
        settings = PipelineSettings.model_validate(
            {
                "redis": {"url": url},
                "archive": {"path": str(place / "archive")},
                "source": {"max_bytes_per_trigger": _MICRO_BATCH_BYTES},
            }
        )
        client = connect(url)
        context = JobContext(self.spark, settings, client, place / "checkpoint", {"availableNow": True}, print)
        job = ArchiveJob([work.topic])
        with self._measured(side, work.topic, ARCHIVE) as figures:
            _ended(job.start(context))
        reported = job.finish(context)
        figures["rows"] = reported["records"]
        if reported["records"] != work.rows:
            raise RuntimeError(f"{reported['records']} of {work.rows} records of {work.topic} were archived")
        options = {**side.options, "tiers": "archive", "archive.path": str(place / "archive")}
        yield replace(side, name=COLD, options=options)
        prefix = settings.redis.key_prefix
        for partition in selection.places(selection.chosen(read_topics(client, prefix, "default"), [work.topic])):
            keys = partition.keys(prefix)
            client.delete(keys.archive, keys.segments)  # the next round archives all of it again
        client.close()
        shutil.rmtree(place)

    @contextmanager
    def _measured(self, side: Side, topic: str, sink: str) -> Iterator[dict[str, Any]]:
        figures: dict[str, Any] = {"side": side.name, "topic": topic, "sink": sink}
        before = self._spark_cpu(), sum(map(tree_cpu_seconds, side.pids)), time.perf_counter()
        yield figures
        figures["seconds"] = time.perf_counter() - before[2]
        figures["spark_cpu_s"] = self._spark_cpu() - before[0]
        figures["served_cpu_s"] = sum(map(tree_cpu_seconds, side.pids)) - before[1]
        figures["load"] = os.getloadavg()[0]
        self.rows.append(figures)
        print(json.dumps(figures), flush=True)

    def _spark_cpu(self) -> float:
        return tree_cpu_seconds(self._spark_pid)


def _ended(query: StreamingQuery) -> int:
    """Wait for a query; the rows that it read. Raises its own exception."""
    if not query.awaitTermination(_QUERY_TIMEOUT_S):
        query.stop()
        raise RuntimeError(f"the query is not done after {_QUERY_TIMEOUT_S} s")
    return sum(int(progress["numInputRows"] or 0) for progress in query.recentProgress)


@contextmanager
def served(with_kafka: bool) -> Iterator[list[Side]]:
    """Both endpoints, and the ways to read from them. Raises PeerUnavailable."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(1))
        ours = {"redis.url": cluster.redis_url, "includeHeaders": "false", "maxBytesPerTrigger": _MICRO_BATCH}
        sides = [
            Side(engine, "tidegate", {**ours, "decoder": engine}, cluster.bootstrap, cluster.pids)
            for engine in ("numpy", "numba")
        ]
        if with_kafka:
            kafka = stack.enter_context(KafkaPeer(version=NEWEST_KAFKA_VERSION))
            options = {"kafka.bootstrap.servers": kafka.bootstrap}
            sides.insert(0, Side(CONNECTOR, "kafka", options, kafka.bootstrap, kafka.pids))
        yield sides


def measure(bench: Bench, chosen: Sequence[Work], rounds: int) -> None:
    """Warm every side; then fill each topic, read it whole by each in turns, and drop it."""
    servers = {side.bootstrap for side in bench.sides}
    warm = replace(works(_WARM_SCALE)[0], topic="warm")
    for bootstrap, work in product(servers, (warm, FEW)):
        fill(bootstrap, work)
    for _ in range(2):
        _round(bench, warm)
    bench.rows.clear()
    for work in chosen:
        for bootstrap in servers:
            fill(bootstrap, work)
        for _ in range(rounds):
            _round(bench, work)
            for side in bench.sides:
                bench.read(side, FEW, "noop")
        for bootstrap in servers:
            drop(bootstrap, work)


def measure_writes(bench: Bench, chosen: Sequence[Work], rounds: int) -> None:
    """Write each work once to warm, then in turns by the connector and ours, whose decoder does not matter here."""
    sides = [side for side in bench.sides if side.name in (CONNECTOR, "numpy")]
    for work in chosen:
        for side in sides:
            create(side.bootstrap, work)
            bench.write(side, work)
        del bench.rows[-len(sides) :]
        for _, side in product(range(rounds), sides):
            bench.write(side, work)
        for side in sides:
            drop(side.bootstrap, work)


def _round(bench: Bench, work: Work) -> None:
    ours = bench.sides[-1]
    with bench.archived(ours, work) as cold:
        for sink, side in product(SINKS, (*bench.sides, cold)):
            bench.read(side, work, sink)


def main(args: argparse.Namespace) -> int:
    """Measure, print each line, write the page where all was measured."""
    if not args.page:
        rows = _measured(args)
        if args.raw is not None:
            with args.raw.open("a") as raw:
                raw.writelines(f"{json.dumps(row)}\n" for row in rows)
        if args.only:
            return 0
    else:
        rows = [json.loads(line) for line in args.raw.read_text().splitlines()]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    decoded = decoder.measure(args.decoder_seconds)
    args.out.write_text(spark_report.page(rows, works(args.scale), written(args.scale), decoded))
    print(f"written: {args.out}", flush=True)
    return 0


def _leave_out_test_packages(folder: Path) -> None:
    """kio imports hypothesis where there is one: 0.1 s of each process that plans, which users do not have."""
    hidden = folder / "left-out"
    hidden.mkdir()
    (hidden / "hypothesis.py").write_text('raise ImportError("only tests use it")\n')
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH", ""))))


def _measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-spark-")))
        settings = {**_SESSION, **dict(each.split("=", 1) for each in args.conf)}
        try:
            jars = "" if args.no_kafka else connector_jars()
            sides = stack.enter_context(served(bool(jars)))
        except PeerUnavailable as unavailable:
            print(f"the peer is skipped: {unavailable}", flush=True)
            jars, sides = "", stack.enter_context(served(False))
        if jars:
            settings["spark.jars"] = jars
        _leave_out_test_packages(folder)
        spark = spark_session("benchmark", settings, master="local[2]")
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(spark, sides, folder)
        only = args.only.split(",") if args.only else None
        reads, writes = (
            [work for work in each if only is None or work.topic in only]
            for each in (works(args.scale), written(args.scale))
        )
        if reads:
            measure(bench, reads, args.rounds)
        measure_writes(bench, writes, args.rounds)
        return bench.rows
