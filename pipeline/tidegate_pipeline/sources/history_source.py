"""What `tidegate-events` and `tidegate-lag` have in common: capped Redis streams as a data source of Spark.

Options, their names without case: `redis.url` (an address with a password comes from the settings of each process),
`redis.passwordVariable` (name of an environment variable), `redis.keyPrefix`, `startingOffsets` and `endingOffsets`
(batch only): `earliest`, `latest` or JSON `{"<stream>": "<ms>-<seq>"}`, the last entry before and the last in;
`startingTimestamp` in ms; `group` and `org`: only these; `failOnDataLoss`; `maxEntriesPerTrigger`.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from tidegate_pipeline.addresses import check_option
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.redis_access import Client, connect_by_option
from tidegate_pipeline.settings import load
from tidegate_pipeline.sources.capped_streams import (
    CappedStreams,
    EntryRange,
    Fields,
    Places,
    from_offsets,
    spread,
    to_offsets,
)
from tidegate_pipeline.spark_errors import reports_one_line

OPTIONS: Final = (
    "redis.url", "redis.passwordVariable", "redis.keyPrefix", "startingOffsets", "endingOffsets",
    "startingTimestamp", "group", "org", "failOnDataLoss", "maxEntriesPerTrigger",
)  # fmt: skip
ENTRIES_PER_TRIGGER: Final = 100_000
TASKS_MAX: Final = 4
"""Tasks of a micro-batch: these streams are small, and a task costs as much as thousands of entries."""


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Which groups: the one of a name, those of an organisation; None for all."""

    group: str | None = None
    org: str | None = None

    def holds(self, group: str, org: str) -> bool:
        """Whether a group is one of them."""
        return self.group in (None, group) and self.org in (None, org)


class HistoryOptions:
    """The options of a query, checked. Raises UsageError."""

    def __init__(self, options: Mapping[str, str], max_entries: int = ENTRIES_PER_TRIGGER) -> None:
        given = FormatOptions("a history source", OPTIONS, options)
        settings = load().redis
        self.url = check_option(given.text("redis.url", settings.option_url))
        self.password_variable = given.text("redis.passwordVariable", settings.password_variable)
        self.prefix = given.text("redis.keyPrefix", settings.key_prefix)
        self.retry_s = settings.retry_s
        self.starting = given.text("startingOffsets")
        self.ending = given.text("endingOffsets", "latest")
        self.starting_timestamp = given.integer("startingTimestamp", 0)
        self.max_entries = given.integer("maxEntriesPerTrigger", 1) or max_entries
        self.fail_on_data_loss = given.flag("failOnDataLoss", True)
        self.wanted = GroupFilter(given.optional_text("group"), given.optional_text("org"))
        if self.starting and self.starting_timestamp is not None:
            raise UsageError("startingOffsets or startingTimestamp, not both")

    def places(self, streams: CappedStreams, text: str) -> Places:
        """What `earliest`, `latest` or JSON stands for now."""
        if text in ("earliest", "latest"):
            return streams.earliest() if text == "earliest" else streams.latest()
        try:
            return streams.given({stream: str(entry_id) for stream, entry_id in json.loads(text).items()})
        except (ValueError, AttributeError):
            raise UsageError(f'offsets are earliest, latest or {{"<stream>": "<ms>-<seq>"}}, not {text}') from None

    def start(self, streams: CappedStreams, default: str) -> Places:
        """Where the query begins."""
        if self.starting_timestamp is not None:
            return streams.from_time(self.starting_timestamp)
        return self.places(streams, self.starting or default)


@reports_one_line
class HistorySource(DataSource):
    """A format over capped streams: defines the streams, and the rows of an entry."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.settings = HistoryOptions(options)

    @abstractmethod
    def streams(self, client: Client) -> list[str]:
        """The names of the streams that have what is wanted."""

    @abstractmethod
    def rows(self, entry_id: str, fields: Fields) -> Iterator[tuple[Any, ...]]:
        """The rows of one entry, of wanted groups only."""

    def reader(self, schema: Any) -> HistoryReader:
        """For `spark.read`."""
        return HistoryReader(self)

    def streamReader(self, schema: Any) -> HistoryStreamReader:
        """For `spark.readStream`."""
        return HistoryStreamReader(self)

    def open(self) -> CappedStreams:
        """The streams over a connection of their own."""
        settings = self.settings
        client = connect_by_option(settings.url, settings.password_variable)
        return CappedStreams(client, self.streams(client), settings.fail_on_data_loss, settings.retry_s)


def _partitions(entry_ranges: Iterable[EntryRange]) -> list[InputPartition]:
    return [InputPartition(task) for task in spread(entry_ranges, TASKS_MAX)]


def _rows(source: HistorySource, entry_ranges: Iterable[EntryRange]) -> Iterator[tuple[Any, ...]]:
    with closing(source.open()) as streams:
        for entry_range in entry_ranges:
            for entry_id, fields in streams.read(entry_range):
                yield from source.rows(entry_id, fields)


@reports_one_line
class HistoryReader(DataSourceReader):
    """One batch: from `startingOffsets` to `endingOffsets`. Filters are Spark's, see decision 0021."""

    def __init__(self, source: HistorySource) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        """The whole range, dealt out."""
        settings = self._source.settings
        with closing(self._source.open()) as streams:
            start, end = settings.start(streams, "earliest"), settings.places(streams, settings.ending)
            entry_ranges = [entry_range for entry_range in streams.entry_ranges(start, end) if entry_range.count > 0]
        return _partitions(entry_ranges) or [InputPartition([])]  # of no partition Spark makes one of None

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of one task."""
        return _rows(self._source, partition.value)


@reports_one_line
class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of micro-batches. Its offsets are places; see `capped_streams`."""

    def __init__(self, source: HistorySource) -> None:
        self._source = source
        self._opened: CappedStreams | None = None
        self._target: Places | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_opened": None, "_target": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins."""
        return to_offsets(self._source.settings.start(self._streams, "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:
        """`maxEntriesPerTrigger`: what Spark calls rows are entries here."""
        return ReadMaxRows(self._source.settings.max_entries)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_offsets(self._streams.advance(from_offsets(start), self._target, most))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the present end of the streams."""
        self._target = self._streams.latest()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the streams end now, for the query's progress."""
        return to_offsets(self._streams.latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch, also of one that is run again."""
        return _partitions(self._streams.entry_ranges(from_offsets(start), from_offsets(end)))

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of one task."""
        return _rows(self._source, partition.value)

    def stop(self) -> None:
        """Let the connection go."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _streams(self) -> CappedStreams:
        if self._opened is None:
            self._opened = self._source.open()
        return self._opened


def time_ms(entry_id: str, fields: Fields) -> int:
    """The time in an entry, else the time of its id."""
    return int(fields.get(b"time") or entry_id.partition("-")[0])
