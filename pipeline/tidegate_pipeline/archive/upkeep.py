"""Maintenance commands of an archive: files, verify, compact, gc. They need no Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tidegate.records.segments import below
from tidegate_pipeline.archive.beside_log import LogBatches
from tidegate_pipeline.archive.compaction import Compacted, compact, runs
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.orphans import collect, stored_files, unpublished
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.records_beside import LogRecords
from tidegate_pipeline.archive.segment_writer import ArchiveFolder, Shape
from tidegate_pipeline.archive.selection import chosen, places
from tidegate_pipeline.archive.verification import Verified, verify
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.tables.folder import files as table_files
from tidegate_pipeline.tables.folder import form_of
from tidegate_pipeline.topics import RecordKeys, read_topics

_RETRY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """An archive, and the Redis that has its index."""

    path: str
    archive: ArchiveFolder
    client: Client
    prefix: str
    org: str
    shape: Shape
    gc_grace_s: int

    @classmethod
    def of(cls, settings: PipelineSettings, client: Client, org: str = "default") -> Upkeep:
        """From the settings. Raises UsageError."""
        given = settings.archive
        shape = Shape(given.segment_bytes, given.row_group_bytes, given.recompress)
        archive = ArchiveFolder.open(given.path)
        return cls(given.path, archive, client, settings.redis.key_prefix, org, shape, given.gc_grace)

    def files(self, what: str | None) -> list[dict[str, Any]]:
        """Published segments of a topic (of all where `what` is None), or the committed files of a table."""
        topics = read_topics(self.client, self.prefix, self.org)
        if what is not None and what not in topics:
            table = below(self.path, what.strip("/"))
            if form_of(table) is None:
                raise UsageError(f"{what} is neither a topic nor a table")
            return [file._asdict() for file in table_files(table)]
        return [
            {"topic": place.topic, "partition": place.partition, **asdict(segment)}
            for place, index in self._archived([what] if what else [])
            for segment in index.all_segments()
        ]

    def verify(self, topics: Sequence[str]) -> dict[str, Any]:
        """Read everything; `problems` is empty where all is well. `unpublished_files` are no problem: gc's."""
        reported, partitions, orphans = Verified(), 0, 0
        files, topics_of = stored_files(self.archive), read_topics(self.client, self.prefix, self.org)
        for place, index in self._archived(topics):
            keys = topics_of[place.topic].keys(self.prefix, place.partition)
            log: LogBatches | LogRecords = LogBatches(self.client, keys, _RETRY_S)
            if isinstance(keys, RecordKeys):
                log = LogRecords(self.client, keys, _RETRY_S)
            reported += verify(self.archive, index, place, log)
            partitions += 1
            orphans += len(unpublished(index, files.get(place, [])))
        return {"partitions": partitions, **asdict(reported), "unpublished_files": orphans}

    def compact(self, topics: Sequence[str], *, dry_run: bool = False) -> dict[str, Any]:
        """Merge small segments."""
        reported = Compacted()
        for place, index in self._archived(topics):
            if dry_run:
                found = list(runs(index.all_segments(), self.shape.segment_bytes))
                reported += Compacted(sum(map(len, found)), len(found), sum(one.size for run in found for one in run))
            else:
                reported += compact(self.archive, index, place, self.shape)
        return asdict(reported)

    def gc(
        self, *, deleted_topics: bool = False, below_log_start: bool = False, dry_run: bool = False
    ) -> dict[str, Any]:
        """Remove what nobody published; when asked, what is below the log start, and topics that are gone."""
        known = set(places(read_topics(self.client, self.prefix, self.org).values()))
        forgotten = 0
        if below_log_start and not dry_run:
            forgotten = sum(len(index.raise_start(1 << 53)) for _, index in self._archived([]))
        # a clock ahead would take the new file of a compaction under way
        seconds, microseconds = self.client.time()
        now_s = min(time.time(), seconds + microseconds / 1e6)
        reported = collect(
            self.archive, self.client, self.prefix, self.org, known, now_s - self.gc_grace_s,
            deleted_topics=deleted_topics, dry_run=dry_run,
        )  # fmt: skip
        return {"segments_forgotten": forgotten, **asdict(reported)}

    def _archived(self, topics: Sequence[str]) -> Iterator[tuple[Place, ArchiveIndex]]:
        """Partitions that have an archive."""
        for place in places(chosen(read_topics(self.client, self.prefix, self.org), topics)):
            index = ArchiveIndex(self.client, place.keys(self.prefix))
            if index.state().end >= 0:
                yield place, index
