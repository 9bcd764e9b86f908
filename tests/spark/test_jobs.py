"""Running jobs: to the end, again, until a signal, into a failure; several at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.scripted import CountedJob
from tidegate_pipeline.errors import DataLoss
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.jobs.progress import Display
from tidegate_pipeline.jobs.running import Run, run_all
from tidegate_pipeline.settings import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = Display(quiet=True)


def a_run(spark: SparkSession, folder: Path, every: str | None = None, **options: str) -> Run:
    name = options.get("as", "counted")
    trigger = {"processingTime": every} if every else {"availableNow": True}
    context = JobContext(spark, load(), None, folder / f"checkpoint-{name}", trigger)
    return Run(CountedJob(str(folder / f"rows-{name}"), **options), context)


def offsets_in(spark: SparkSession, folder: Path, name: str = "counted") -> list[int]:
    return sorted(row.offset for row in spark.read.parquet(str(folder / f"rows-{name}")).collect())


def test_signal_stops_after_the_running_micro_batch_and_a_restart_continues(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = a_run(spark, tmp_path, "5 seconds", pause_s="1")  # the third is begun seconds after the signal
    checkpoint = Path(run.context.checkpoint)

    def signal_amid_the_second() -> None:
        while not (checkpoint / "offsets" / "1").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=signal_amid_the_second)
    killer.start()
    run_all([run], QUIET)
    killer.join()

    reported = run.summary()
    assert (reported["status"], reported["rows"], reported["micro_batches"]) == ("stopped", 20, 2)
    assert (reported["ranges"], reported["remaining_offsets"]) == ({"counted-0": [0, 20]}, 20)
    assert (checkpoint / "commits" / "1").exists(), "the micro-batch that ran was finished"
    assert not (checkpoint / "offsets" / "2").exists(), "and none was begun"
    assert offsets_in(spark, tmp_path) == list(range(20))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    again = a_run(spark, tmp_path)
    run_all([again], QUIET)
    assert again.summary()["status"] == "done"
    assert again.summary()["ranges"] == {"counted-0": [20, 40]}
    assert again.summary()["written"] == str(tmp_path / "rows-counted")
    assert offsets_in(spark, tmp_path) == list(range(40))


def test_failure_is_named_and_stops_the_others(spark: SparkSession, tmp_path: Path) -> None:
    fails = a_run(spark, tmp_path, **{"as": "fails", "fail_at": "15", "failure": "DataLoss"})
    is_alive = a_run(spark, tmp_path, "1 second", **{"as": "goes-on"})
    run_all([is_alive, fails], QUIET)

    assert isinstance(fails.error, DataLoss)
    assert str(fails.error) == "offset 15 of counted-0 is gone"
    assert fails.summary()["status"] == "failed"
    assert fails.summary()["exit_status"] == 3
    assert is_alive.error is None
    assert is_alive.summary()["status"] == "stopped"
    assert offsets_in(spark, tmp_path, "fails") == list(range(10))
