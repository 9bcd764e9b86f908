"""A job over a data source of a few counted rows, for the tests of what runs jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from tidegate_pipeline import errors
from tidegate_pipeline.jobs.job import Job, JobContext

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OFFSETS = 40


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Ten offsets a micro-batch of topic `counted`; a read may be slow, or fail with a named error."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is known already."""

    def initialOffset(self) -> dict[str, Any]:
        return {"counted": {"0": 0}}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        return {"counted": {"0": min(start["counted"]["0"] + 10, OFFSETS)}}

    def reportLatestOffset(self) -> dict[str, Any]:
        return {"counted": {"0": OFFSETS}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["counted"]["0"], end["counted"]["0"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        first, end = partition.value
        time.sleep(float(self._options.get("pause_s", "0")))
        for offset in range(first, end):
            if str(offset) == self._options.get("fail_at"):
                raise getattr(errors, self._options["failure"])(f"offset {offset} of counted-0 is gone\nsecond line")
            yield (offset,)


class CountedSource(DataSource):
    """`format("counted")`."""

    @classmethod
    def name(cls) -> str:
        return "counted"

    def schema(self) -> str:
        return "offset long"

    def streamReader(self, schema: object) -> _Reader:
        return _Reader(dict(self.options))


class CountedJob(Job):
    """Counted rows to Parquet."""

    name: ClassVar[str] = "counted"

    def __init__(self, target: str, **options: str) -> None:
        self.target, self.options = target, options

    @property
    def query_name(self) -> str:
        return self.options.get("as", self.name)

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        return [{"topic": "counted", "partition": 0, "start": 0, "end": OFFSETS}]

    def start(self, context: JobContext) -> StreamingQuery:
        context.spark.dataSource.register(CountedSource)
        rows = context.spark.readStream.format("counted").options(**self.options).load()
        writing = rows.writeStream.queryName(self.query_name).trigger(**context.trigger).format("parquet")
        return writing.option("checkpointLocation", str(context.checkpoint)).start(self.target)

    def finish(self, context: JobContext) -> dict[str, object]:
        return {"written": self.target}
