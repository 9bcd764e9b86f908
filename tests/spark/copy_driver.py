"""A stream that copies one topic to another by the sink `tidegate`: a program of its own, so that it can be killed.

Arguments: Redis URL, brokers, source, target, checkpoint, and `once` or the trigger's interval. The key of a copy is
`partition:offset` of its record.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate_pipeline.session import spark_session


def main() -> None:
    redis_url, bootstrap, source, target, checkpoint, often = sys.argv[1:]
    settings = {"spark.driver.memory": "1g", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    spark = spark_session("copy", settings, master="local[2]", log=Path(checkpoint).parent / "spark.log")
    rows = (
        spark.readStream.format("tidegate")
        .option("redis.url", redis_url)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", str(64 << 20) if often == "once" else "200000")
        .load()
    )
    query = (
        rows.selectExpr("concat(partition, ':', offset) key", "value")
        .writeStream.format("tidegate")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(**({"availableNow": True} if often == "once" else {"processingTime": often}))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
