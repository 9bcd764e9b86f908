"""The source of topics without Spark: plans made and ranges read in this process."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.segments import batches_from, write_segment
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tidegate_pipeline.archive.index import ArchiveIndex, Archiver
from tidegate_pipeline.decode import schema
from tidegate_pipeline.redis_access import replids
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.options import parse_options
from tidegate_pipeline.sources.planning import PlannedRange, name_of
from tidegate_pipeline.sources.tasks import arrow_rows


def access_to(url: str, **options: str) -> Access:
    """Access with options whose names may be given with `_` for `.`."""
    given = {name.replace("_", "."): text for name, text in options.items()}
    return Access(parse_options({"redis.url": url, "redis.retry": "5", **given}))


def rows_of(access: Access, ranges: Sequence[PlannedRange], plan: str = "") -> list[dict[str, Any]]:
    """All rows, range by range; every Arrow batch has exactly the schema that Spark makes of the declared one."""
    options = access.options
    raw = schema.raw_schema(options.include_range)
    declared = raw if options.mode == "raw" else schema.decoded_schema(options.include_headers)
    batches = [batch for range_ in ranges for batch in arrow_rows(access, range_, plan or name_of(ranges))]
    assert all(batch.schema.equals(to_arrow_schema(declared, timezone="UTC")) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def offsets_of(access: Access, ranges: Sequence[PlannedRange]) -> list[tuple[int, int]]:
    """(partition, offset) of every decoded row."""
    return [(row["partition"], row["offset"]) for row in rows_of(access, ranges)]


def archive_up_to(client: Any, root: Any, topic: WrittenTopic, counts: list[int], start: int = 0) -> int:
    """A published segment with a batch of each count of records, from `start` on; returns the archive's end."""
    names = SimpleNamespace(org="default", name=topic.name, topic_hex=topic.topic_id)
    bases = [start + sum(counts[:at]) for at in range(len(counts))]
    batches = [
        batch
        for base, count in zip(bases, counts, strict=True)
        for batch in batches_from(base, [count], timestamp=TIMESTAMP_MS + base)
    ]
    segment = write_segment(root, batches, topic=names, row_group_batches=2)
    return ArchiveIndex(client, topic.keys()).publish(Archiver(1, "test"), [segment], replids(client)).end
