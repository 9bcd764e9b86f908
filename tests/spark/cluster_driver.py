"""What the cluster lane runs: a topic read by a batch query that waits amid its tasks, then by a stream into Parquet.

`cluster_driver.py MASTER REDIS FOLDER`; run by a Python that has the wheel and nothing of the tree.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import tidegate_pipeline
from tidegate_pipeline.session import spark_session

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
}


def counting(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Tells where a task runs, waits for the file `go`, then counts its rows and sums their offsets."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        reported = json.dumps({"cwd": os.getcwd(), "package": tidegate_pipeline.__file__})
        Path(folder, f"began-{context.partitionId()}-{context.attemptNumber()}").write_text(reported)
        while not Path(folder, "go").exists():
            time.sleep(0.1)
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"rows": [batch.num_rows], "offsets": [pc.sum(batch.column("offset")).as_py() or 0]}
            )

    return count


def main(master: str, redis: str, folder: str) -> dict[str, Any]:
    """The figures."""
    spark = spark_session("cluster lane", SETTINGS, master, log=Path(folder, "driver.log"))
    options = {"redis.url": redis, "subscribe": "orders", "startingOffsets": "earliest"}
    records = spark.read.format("tidegate").options(**options, minPartitions="6").load()
    counted = records.mapInArrow(counting(folder), "rows long, offsets long").collect()

    stream = spark.readStream.format("tidegate").options(**options, maxBytesPerTrigger="64k").load()
    writing = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writing.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/table")
    query.awaitTermination()
    table = spark.read.parquet(f"{folder}/table")
    reported = {
        "package": tidegate_pipeline.__file__,
        "rows": sum(row.rows for row in counted),
        "offsets": sum(row.offsets for row in counted),
        "micro_batches": sum(1 for progress in query.recentProgress if progress.numInputRows),
        "table": table.count(),
        "distinct": table.select("partition", "offset").distinct().count(),
    }
    spark.stop()
    return reported


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
