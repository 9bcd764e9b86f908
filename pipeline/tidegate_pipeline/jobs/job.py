"""What a job is: one streaming query with a plan before it and figures after it. `running.py` runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def unsaid(text: str) -> None:
    """Where nobody reads the progress lines."""


@dataclass(slots=True)
class JobContext:
    """What a job is given. `trigger` goes to `writeStream.trigger(**trigger)`.

    `checkpoint` is the folder of this query alone, local or a URI. `note` prints a line for the user.
    """

    spark: SparkSession
    settings: PipelineSettings
    client: Client
    checkpoint: Path | str
    trigger: dict[str, Any]
    note: Callable[[str], None] = unsaid


class Job(ABC):
    """One streaming query."""

    name: ClassVar[str]
    """The verb."""
    row_name: ClassVar[str] = "rows"
    """What the rows that it reads are, for people: `batches` where its source's `mode` is `raw`."""

    @property
    def query_name(self) -> str:
        """Names the query, its checkpoint folder and its fair pool; longer than the verb where one verb has several
        queries (`decode-orders`).
        """
        return self.name

    @abstractmethod
    def plan(self, context: JobContext) -> list[dict[str, object]]:
        """What it would read: ranges, counts. Changes nothing and needs no Spark: `context.spark` is not there yet."""

    def check(self, context: JobContext) -> None:  # noqa: B027  a job may have nothing to check
        """Look, before Spark starts, whether there is what it reads and can be written where it writes.

        Changes nothing. Raises UsageError.
        """

    @abstractmethod
    def start(self, context: JobContext) -> StreamingQuery:
        """Begin the query, named `query_name`, with `context.trigger` and `context.checkpoint`."""

    def observed(self, counts: Mapping[str, int]) -> dict[str, object]:
        """Figures for the summary out of what `DataFrame.observe` counted."""
        return dict(counts)

    @abstractmethod
    def finish(self, context: JobContext) -> dict[str, object]:
        """Figures for the summary and `--json`, after the query has ended or was stopped."""
