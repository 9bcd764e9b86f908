"""Is the archive what its index says, and what the log holds? Every batch is read, its CRC computed, its offsets
followed; where Redis holds the same offsets still, batch by batch beside the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.errors import KafkaError
from tidegate.records.batch import Batch
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import Segment, SegmentUnreadable
from tidegate_pipeline.archive.beside_log import Beside, LogBatches
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.archive.records_beside import LogRecords, RecordsBeside
from tidegate_pipeline.archive.segment_writer import ArchiveFolder


@dataclass(slots=True)
class Verified:
    """What was read, and each thing that is wrong in a line of its own."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    log_batches: int = 0
    """Of the batches, those that the log holds too."""

    def __iadd__(self, other: Verified) -> Verified:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self


def verify(
    archive: ArchiveFolder, index: ArchiveIndex, place: Place, log: LogBatches | LogRecords | None = None
) -> Verified:
    """Check one partition: the index against itself, each file against the index, each batch against its columns.

    With `log` also against what Redis holds: the archive claims no offset that the log never had, and both have the
    same batches.
    """
    reported = Verified()
    beside: Beside | RecordsBeside | None = None
    if log is not None:
        quarantined = Quarantine(archive).base_offsets(place)
        beside = log.beside(index.state().end, place, quarantined)
    state, expected = index.state(), -1
    for segment in index.all_segments():
        if segment.from_offset != (state.start if expected < 0 else expected):
            reported.problems.append(f"{place}: {segment.file} begins at {segment.from_offset}, not at {expected}")
        expected = segment.end_offset
        reported.segments += 1
        try:
            is_first = segment.from_offset == state.start
            found = _segment(archive, segment, is_first, reported, beside)
            reported.problems += (f"{segment.file}: {problem}" for problem in found)
        except SegmentUnreadable as error:
            reported.problems.append(str(error))
            beside = None  # what it held cannot be compared
    if expected >= 0 and index.state().start == state.start and expected < state.end:
        reported.problems.append(f"{place}: the last segment ends at {expected}, the archive at {state.end}")
    if expected < 0 and state.start < state.end:
        reported.problems.append(f"{place}: no segment of offsets {state.start} to {state.end - 1}")
    if beside is not None:
        reported.problems += beside.ended()
        reported.log_batches = beside.batches
    return reported


def _segment(
    archive: ArchiveFolder, segment: Segment, is_first: bool, reported: Verified, beside: Beside | RecordsBeside | None
) -> Iterator[str]:
    """The archive may start inside a batch, as a log may: its first batch then begins below it."""
    file = SegmentFile(archive.filesystem, archive.path(segment.file))
    for name, value in asdict(segment).items():
        if name != "file" and file.fields.get(name) != value:
            yield f"{name} is {file.fields.get(name)}, the index says {value}"
    expected, records, size = segment.from_offset, 0, 0
    for at in range(len(file.row_groups)):
        for row in file.table(at).to_pylist():
            reported.batches += 1
            records += row["records"]
            size += len(row["batch"])
            begins_below = row["base_offset"] < expected and not (is_first and expected == segment.from_offset)
            if row["from_offset"] != expected or begins_below or row["last_offset"] < expected:
                yield f"offsets {row['base_offset']} to {row['last_offset']} come after {expected - 1}"
            expected = row["last_offset"] + 1
            if (problem := _batch(row)) is not None:
                yield f"offsets {row['base_offset']} to {row['last_offset']}: {problem}"
            if beside is not None:
                beside.take(row)
    reported.records += records
    reported.bytes += size
    if (records, size) != (segment.records, segment.size) or expected > segment.end_offset:
        yield f"{records} records, {size} bytes up to {expected - 1}; the index says {segment}"


def _batch(row: dict[str, Any]) -> str | None:
    try:
        batch = Batch.parse(row["batch"])
        batch.verify_crc()
    except KafkaError as error:
        return str(error)
    header = {
        "base_offset": batch.base_offset,
        "last_offset": batch.next_offset - 1,
        "records": batch.record_count,
        "max_timestamp": batch.max_timestamp,
        "attributes": batch.attributes,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "crc": batch.crc,
    }
    wrong = [name for name, value in header.items() if row[name] != value]
    if batch.size != len(row["batch"]):
        wrong.append("length")
    return f"the batch has another {', '.join(wrong)}" if wrong else None
