"""What the Connect lane runs in a process of its own: a client of a Connect server reads a topic, and streams it.

`connect_driver.py SERVER REDIS FOLDER`; without Java, by gRPC alone.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tidegate_pipeline.session import spark_session


def main(server: str, redis: str, folder: str) -> dict[str, Any]:
    """The figures."""
    spark = spark_session("connect lane", master=server)
    options = {"redis.url": redis, "subscribe": "orders", "startingOffsets": "earliest"}
    records = spark.read.format("tidegate").options(**options).load().where("partition = 1")
    stream = spark.readStream.format("tidegate").options(**options, maxBytesPerTrigger="4k").load()
    writing = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = writing.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/table")
    ended = query.awaitTermination(240)
    table = spark.read.parquet(f"{folder}/table")
    reported = {
        "client": f"{type(spark).__module__}.{type(spark).__name__}",
        "records": records.count(),
        "values": [row.value.decode() for row in records.orderBy("offset").limit(2).collect()],
        "ended": ended,
        "micro_batches": sum(1 for progress in query.recentProgress if progress["sources"]),
        "table": table.select("partition", "offset").distinct().count(),
        "events": spark.read.format("tidegate-events").option("redis.url", redis).load().count(),
    }
    spark.stop()
    return reported


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
