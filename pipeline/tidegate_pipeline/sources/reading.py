"""Read the batches of one range, in order, from the tier that has them; runs in a task.

Offsets that were trimmed from Redis after planning are read from the archive, if the query reads it; otherwise they
are data loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from tidegate.records.batch import Batch
from tidegate.records.batch_header import INT32, LAST_DELTA_AT, RECORD_COUNT_AT
from tidegate.records.entry_batches import build_batches
from tidegate.records.entry_ids import RecordIds
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import SegmentMissing, SegmentUnreadable
from tidegate.store.keys import LogKeys
from tidegate_pipeline.decode.decoder import StoredBatch
from tidegate_pipeline.errors import LogGone, PipelineError
from tidegate_pipeline.redis_access import retry_while_unavailable, with_whole_entries
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.planning import PartitionPlanner, PlannedRange, keys_of_range
from tidegate_pipeline.sources.tiers import Tier, arrange
from tidegate_pipeline.sources.walking import UNLIMITED

_REPLY_BYTES: Final = 1 << 20
"""What caches hold: replies of 4 MiB cost a fifth more CPU."""
_PAGE_MAX: Final = 4_096
_SEGMENT_TRIES: Final = 3


class _Trimmed(Exception):
    """The offsets from `position` on were trimmed from Redis."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def read_range(access: Access, range_: PlannedRange) -> Iterator[tuple[PlannedRange, Iterator[list[StoredBatch]]]]:
    """A range as the ranges that it is read in, with their batches in order, a reply or a row group at a time.

    A range whose tier is LOST has no batches; the caller reports it. Raises PipelineError.
    """
    left, trimmed_at = [range_], range_.start - 1
    while left:
        part_range = left.pop(0)
        trims: list[int] = []
        yield part_range, _read_until_trimmed(access, part_range, trims)
        if trims and trims[0] <= trimmed_at:
            raise PipelineError(f"{_named(part_range)}: offset {trimmed_at} is in no tier, though the index says so")
        if trims:
            trimmed_at = trims[0]
            left = _plan_again(access, replace(part_range, start=trimmed_at)) + left


def _read_until_trimmed(access: Access, part_range: PlannedRange, trims: list[int]) -> Iterator[list[StoredBatch]]:
    try:
        yield from _BY_TIER[part_range.tier](access, part_range)
    except _Trimmed as trimmed:
        trims.append(trimmed.position)


def _plan_again(access: Access, range_: PlannedRange) -> list[PlannedRange]:
    planner = PartitionPlanner.of_range(access, range_)
    tier_ranges = arrange(range_.start, range_.end, planner.tiers_left())
    return [planned for tier_range in tier_ranges for planned in planner.ranges(tier_range)]


def _named(range_: PlannedRange) -> str:
    return f"topic {range_.topic} partition {range_.partition}"


def _nothing(access: Access, range_: PlannedRange) -> Iterator[list[StoredBatch]]:
    return iter(())


def _stored(access: Access, range_: PlannedRange) -> Iterator[list[StoredBatch]]:
    """From Redis. Raises _Trimmed, PipelineError where the log is not what was planned."""
    if range_.bits:
        yield from _records(access, range_)
        return
    keys = keys_of_range(access, range_)
    client = with_whole_entries(access.client)
    expected, entries, records = range_.first, 0, 0
    page, more = _page(range_.size, range_.entries), True
    first_id = f"{range_.first}-1"
    while more:
        command = ("XRANGE", keys.log, first_id, f"{range_.end}-0", "COUNT", page)
        reply = retry_while_unavailable(
            lambda command=command: client.execute_command(*command),  # type: ignore[misc]
            access.options.retry_s,
        )
        batches: list[StoredBatch] = []
        redis_start: int | None = None  # behind the reply: what is trimmed later is in it
        for entry_id, fields in reply:
            base = int(entry_id.partition(b"-")[0])
            if base > expected:
                redis_start = _redis_start(access, keys) if redis_start is None else redis_start
                if redis_start > max(expected, range_.start):
                    yield batches
                    raise _Trimmed(max(expected, range_.start))
            expected, counted = _entry(base, fields, batches)
            records += counted
        yield batches
        entries, more = entries + len(reply), len(reply) == page
        if reply:
            first_id = f"{int(reply[-1][0].partition(b'-')[0])}-2"
            page = _page(sum(len(batch.buffer) for batch in batches), len(reply))
    if (entries, records) != (range_.entries, range_.records) or (entries and expected < range_.last_end):
        if _redis_start(access, keys) > max(expected, range_.start):
            raise _Trimmed(max(expected, range_.start))
        if records <= range_.records and _is_compacted(access, keys, range_, expected):
            return
        raise PipelineError(
            f"{_named(range_)}: offsets {range_.start} to {range_.end} were planned as {range_.entries} entries with "
            f"{range_.records} records up to {range_.last_end}, and read as {entries} with {records} up to {expected}: "
            "the log changed meanwhile"
        )


def _records(access: Access, range_: PlannedRange) -> Iterator[list[StoredBatch]]:
    """From a stream of format record: its entries as batches. Trims by Redis programs are holes. Raises _Trimmed."""
    keys, ids, client = keys_of_range(access, range_), RecordIds(range_.bits), with_whole_entries(access.client)
    position, first_id, last_id = range_.start, ids.id_of(range_.start), f"({ids.id_of(range_.end)}"
    page, by_append_time = _page(range_.size, range_.entries), access.has_append_time(range_.topic)
    while position < range_.end:

        def read(first_id: str = first_id) -> tuple[Any, bytes | None]:
            reply = client.execute_command("XRANGE", keys.log, first_id, last_id, "COUNT", page)
            return reply, client.hget(keys.meta, "log_start")  # behind it: what is trimmed is not in the reply

        entries, log_start = retry_while_unavailable(read, access.options.retry_s)
        if log_start is None or int(log_start) > position:
            raise _Trimmed(position)
        built = build_batches(ids, entries, 0, by_append_time=by_append_time)
        yield [StoredBatch(batch, Batch(memoryview(batch)).base_offset) for batch in built.batches]
        if len(entries) < page:
            return
        position, first_id = built.end_offset, f"({entries[-1][0].decode()}"


def _redis_start(access: Access, keys: LogKeys) -> int:
    """The first offset that Redis has now; beyond all if the topic was deleted."""
    try:
        return access.walker(keys).offsets().redis_start
    except LogGone:
        return UNLIMITED


def _is_compacted(access: Access, keys: LogKeys, range_: PlannedRange, end: int) -> bool:
    """Whether compaction reached the range, of which batches up to `end` are left: records may have gone that newer
    ones with their keys replace.
    """
    reply = retry_while_unavailable(lambda: access.client.hget(keys.meta, "cleaned"), access.options.retry_s)
    cleaned = int(reply or 0)
    return range_.first < cleaned and (end >= range_.last_end or range_.last_end <= cleaned)


def _entry(base: int, fields: Sequence[bytes], batches: list[StoredBatch]) -> tuple[int, int]:
    """Add an entry's batches; returns where it ends and its records. The stored base offsets are ignored."""
    records = 0
    for i in range(0, len(fields), 2):
        if fields[i] == b"b":
            batch = fields[i + 1]
            batches.append(StoredBatch(batch, base))
            base += INT32.unpack_from(batch, LAST_DELTA_AT)[0] + 1
            records += INT32.unpack_from(batch, RECORD_COUNT_AT)[0]
    return base, records


def _page(size: int, entries: int) -> int:
    """How many entries make a reply of about a megabyte."""
    return max(1, min(_PAGE_MAX, _REPLY_BYTES * max(entries, 1) // max(size, 1)))


def _archived(access: Access, range_: PlannedRange) -> Iterator[list[StoredBatch]]:
    """From the archive's files, by its index: files that were replaced by a compacted one are looked up again."""
    index = access.index(keys_of_range(access, range_))
    filesystem, root = access.archive()
    position, tries = range_.start, 0
    while position < range_.end:
        found = retry_while_unavailable(lambda position=position: index.segments(position, 1), access.options.retry_s)  # type: ignore[misc]
        if not found or found[0].from_offset > position:
            raise _Trimmed(position)
        try:
            file = SegmentFile(filesystem, f"{root}/{found[0].file}")
            for at in range(file.find(position), len(file.row_groups)):
                if file.row_groups[at].base_offset >= range_.end:
                    break
                yield _batches_of(file.read(at), position, range_.end)
                position = file.row_groups[at].last_offset + 1
        except SegmentUnreadable as error:
            tries += 1
            if tries == _SEGMENT_TRIES or not isinstance(error, SegmentMissing):
                raise PipelineError(
                    f"{_named(range_)}: the archive's index names what cannot be read: {error}"
                ) from error
            continue
        position = max(position, found[0].end_offset)


def _batches_of(read: Any, start: int, end: int) -> list[StoredBatch]:
    places = range(read.find(start), len(read))
    return [StoredBatch(read.batch(at), read.bases[at]) for at in places if read.bases[at] < end]


_BY_TIER: Final = {Tier.REDIS: _stored, Tier.ARCHIVE: _archived, Tier.LOST: _nothing}
