"""The analyses as queries: a stream of events or samples in, a stream of rows out.

A time of the analyses, `<name>_ms`, is `<name>_at` in the table, a timestamp. One row of the analyses is judged from
one group alone, whose events are in one stream in their order; the watermark only advances time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidegate_pipeline.history import commits, storms, timeline
from tidegate_pipeline.history.commits import Back, Commits, Rules, Sample
from tidegate_pipeline.history.group_events import COLUMNS, events_of
from tidegate_pipeline.history.stateful import GroupProcessor
from tidegate_pipeline.history.storms import Storms
from tidegate_pipeline.history.timeline import Timeline
from tidegate_pipeline.settings import CommitSettings, StormSettings, TimelineSettings, UsageSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_MS: Final = 3_600_000


def generations(events: DataFrame, settings: TimelineSettings) -> DataFrame:
    """One row a generation, of rows of `tidegate-events`."""
    wanted = events.where(f.col("event").isin(*timeline.KINDS)).selectExpr("ts", "org", "group", *COLUMNS)
    rows = wanted.withWatermark("ts", f"{settings.state_days} days")
    return _analysed(rows, Timeline, events_of, timeline.SCHEMA)


def incidents(events: DataFrame, ticks: DataFrame, settings: StormSettings) -> DataFrame:
    """A row where a storm opens and one where it closes. `ticks`, any rows with `ts`, advance time."""
    wanted = events.where(f.col("event").isin(*storms.KINDS)).selectExpr("ts", "org", "group", *COLUMNS)
    empty = [f.lit(None).cast(column.dataType).alias(column.name) for column in wanted.schema.fields[1:]]
    rows = wanted.unionByName(ticks.select("ts", *empty)).withWatermark("ts", f"{settings.watermark} seconds")
    make = partial(Storms, settings.window * 1000, settings.threshold)
    return _analysed(rows, make, events_of, storms.SCHEMA)


def anomalies(usage: DataFrame, lag: DataFrame, settings: CommitSettings) -> DataFrame:
    """Silence, bursts and commits that went back, of rows of `tidegate-usage` and of `tidegate-lag`."""
    counted = usage.selectExpr(
        "ts", "org", "group", "unix_millis(ts) as time_ms", "span_ms", "commits", "back_commits", "back",
        "cast(null as bigint) as lag",
    )  # fmt: skip
    waiting = lag.selectExpr(
        "ts", "org", "group", "unix_millis(ts) as time_ms", "cast(0 as bigint) as span_ms",
        "cast(0 as bigint) as commits", "cast(0 as bigint) as back_commits", "lag",
    )  # fmt: skip
    rows = counted.unionByName(waiting, allowMissingColumns=True)
    rows = rows.withWatermark("ts", f"{settings.watermark} seconds")
    rules = Rules(settings.interval * 1000, settings.threshold, settings.silence, settings.warmup)
    return _analysed(rows, partial(Commits, rules), samples_of, commits.SCHEMA)


def samples_of(rows: Iterable[Any]) -> list[Sample]:
    """Samples of one group; rows without a group only advance time."""
    return [
        Sample(
            row.time_ms,
            row.span_ms or 0,
            row.commits or 0,
            row.back_commits or 0,
            [Back(**one) for one in row.back or ()],
            row.lag,
        )
        for row in rows
        if row.group is not None
    ]


def usage_by_interval(usage: DataFrame, settings: UsageSettings) -> DataFrame:
    """One row for an organisation, topic and interval (an hour), once it is over, of rows of `tidegate-usage`.

    What a broker counted goes to the interval in which the middle of its span lies. Byte-hours are the mean of the
    sizes reported in the interval, over the time that the reports cover.
    """
    counters = (
        "records", "stored_bytes", "produce_requests", "produced_bytes", "fetch_requests", "fetched_bytes",
    )  # fmt: skip
    middle = f.timestamp_millis(f.unix_millis("ts") - f.floor(f.col("span_ms") / 2))
    reported = f.when(f.col("redis_bytes").isNotNull(), f.unix_millis("at"))
    spans = f.when(f.col("redis_bytes").isNotNull(), f.col("span_ms"))
    hours = (f.max(reported) - f.min(reported) + f.avg(spans)) / _HOUR_MS
    return (
        usage.withColumn("at", middle)
        .withWatermark("at", f"{settings.watermark} seconds")
        .where("topic is not null")
        .groupBy(f.window("at", f"{settings.interval} seconds"), "org", "topic")
        .agg(
            *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in counters),
            *(
                f.coalesce(f.avg(f"{tier}_bytes") * f.least(hours, f.lit(settings.interval / 3600)), f.lit(0.0)).alias(
                    f"{tier}_byte_hours"
                )
                for tier in ("redis", "archive")
            ),
        )
        .withColumns({"from_at": f.col("window.start"), "to_at": f.col("window.end")})
        .select("from_at", "to_at", "org", "topic", *counters, "redis_byte_hours", "archive_byte_hours")
    )


def _analysed(
    rows: DataFrame,
    make: Callable[[str | None], Any],
    read: Callable[[Iterable[Any]], Iterable[Any]],
    schema: str,
) -> DataFrame:
    columns = cast(StructType, StructType.fromDDL(schema)).names
    found = rows.groupBy("org", "group").transformWithState(
        statefulProcessor=GroupProcessor(make, read, columns),
        outputStructType=f"org string, `group` string, {schema}",
        outputMode="Append",
        timeMode="EventTime",
    )
    return found.select("org", "group", *map(_reported, columns))


def _reported(column: str) -> Any:
    if column.endswith("_ms") and column != "duration_ms":
        return f.timestamp_millis(column).alias(f"{column.removesuffix('_ms')}_at")
    return f.col(column)
