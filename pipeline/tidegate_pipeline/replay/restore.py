"""Archived entries back in Redis under their own ids, in front of what it holds, while brokers append and serve.

A stream takes no id below its last, so a new one is filled, from the archive and then from the log, and takes the
log's place in one step. Brokers detect the new version of the log and refresh.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import redis

from tidegate.records.batch_header import INT32, LAST_DELTA_AT
from tidegate.records.segment_file import SegmentFile
from tidegate.records.segments import SegmentUnreadable
from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate.store.scripts import Script
from tidegate_pipeline.archive.index import ArchiveIndex
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import ArchiveConflict, DataLoss, PipelineError, UsageError
from tidegate_pipeline.redis_access import Client, run, with_whole_entries
from tidegate_pipeline.replay.batches import ENTRY_BATCHES_MAX, ENTRY_BYTES_MAX
from tidegate_pipeline.replay.target import Server, read_server
from tidegate_pipeline.sources.walking import LogWalker
from tidegate_pipeline.topics import Topic

SWAP_LOG = Script("archive/swap_log")

_OFFSET_OUT_OF_RANGE: Final = 1
_WRITER: Final = "restore"
_ABANDONED_S: Final = 86_400
_COPIED_ENTRIES: Final = 64
_LAST_ENTRIES: Final = 16
_SWAP_TRIES: Final = 100
_MEMORY_SHARE: Final = 0.95
_RETENTION_MS: Final = 604_800_000


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore of one partition does: offsets `start` to `end` come from the archive, the rest is copied.

    `end` is the base of the first entry that is copied, `held` the first offset that Redis shows now, `bytes` what
    Redis has more afterwards, `memory` what it needs meanwhile.
    """

    partition: int
    start: int
    end: int
    held: int
    bytes: int
    memory: int
    newest_ms: int


class Restore:
    """The restore of one partition."""

    def __init__(
        self, client: Client, prefix: str, topic: Topic, partition: int, folder: ArchiveFolder, retry_s: float
    ) -> None:
        self._client = with_whole_entries(client)
        self._prefix = prefix
        self._topic = topic
        self._partition = partition
        self._keys: LogKeys = topic.keys(prefix, partition)
        self._folder = folder
        self._retry_s = retry_s
        self._index = ArchiveIndex(client, self._keys)
        self._added = 0

    def plan(self, start: int) -> RestorePlan | None:
        """What is to be done so that Redis holds the log from `start` on; None where it does. Changes nothing.

        Raises DataLoss where the archive has not all of it, UsageError where it does not fit or would not stay,
        StrayEntry.
        """
        keys, here = self._keys, f"{self._topic.name}-{self._partition}"
        state, log_start, local_start = self._client.hmget(keys.meta, "state", "log_start", "local_start")
        if state != b"ready":
            raise UsageError(f"{here} was deleted")
        held = max(int(log_start), int(local_start or 0))
        if start >= held:
            return None
        LogWalker(self._client, keys, self._retry_s).offsets()  # which refuses entries that no broker appended
        first = self._first_entry(held)
        if first is None:
            raise UsageError(f"{here}: nothing was ever written there")
        archived = self._index.state()
        if archived.start < 0 or start < archived.start or archived.end < first:
            raise DataLoss(
                f"{here}: Redis holds offsets from {first} on, the archive {archived.start} to {archived.end - 1}:"
                f" from {start} on there would be a hole"
            )
        segments = [s for s in self._segments(start) if s.from_offset < first]
        size = sum(segment.size for segment in segments)
        memory = int(1.1 * size) + int(self._client.memory_usage(keys.log, samples=20) or 0)
        plan = RestorePlan(
            self._partition, start, first, held, size, memory, max((s.max_timestamp for s in segments), default=-1)
        )
        self._check_space(plan, here)
        return plan

    def check_stays(self, plan: RestorePlan) -> None:
        """Raises UsageError if the next retention run would delete it."""
        configs = self._client.hgetall(ClusterKeys(self._prefix).topic(self._topic.org, self._topic.name))
        names = ["retention.ms"]
        if configs.get(b"remote.storage.enable") == b"true" and int(configs.get(b"local.retention.ms", -2)) != -2:
            names.append("local.retention.ms")
        for name in names:
            kept_ms = int(configs.get(name.encode(), _RETENTION_MS))
            if kept_ms >= 0 and plan.newest_ms < time.time() * 1000 - kept_ms:
                raise UsageError(
                    f"{self._topic.name}: {name} is {kept_ms}, so brokers would delete it again: set it first"
                    f" (-1: never), or --anyway"
                )

    def run(self, plan: RestorePlan) -> dict[str, object]:
        """Do it. Raises ArchiveConflict where the server or the stream became another meanwhile, PipelineError."""
        keys = self._keys
        server = read_server(self._client, self._prefix, keys, self._retry_s)
        failover_epoch, version = self._client.hmget(keys.meta, "incarnation", "log_version")
        if failover_epoch is None or int(failover_epoch) != server.failover_epoch:
            raise PipelineError("no broker has opened this partition since the Redis server started: read it once")
        self._client.unlink(keys.restored)
        self._added = 0
        try:
            batches = self._fill(plan)
            self._swap(plan, server, int(version or 0))
        except redis.exceptions.OutOfMemoryError:
            raise PipelineError("Redis is full (maxmemory): the log was not changed") from None
        except redis.exceptions.ResponseError as error:
            raise ArchiveConflict(f"does another restore run? the log was not changed: {error}") from None
        except SegmentUnreadable as error:
            raise DataLoss(f"the log was not changed: {error}") from None
        finally:
            self._client.unlink(keys.restored)
        return {"partition": plan.partition, "from": plan.start, "to": plan.end, "batches": batches}

    # -- what there is

    def _first_entry(self, held: int) -> int | None:
        """The base of the entry that holds an offset, or of the first one behind it."""
        holder = self._client.execute_command("XREVRANGE", self._keys.log, f"{held}-1", "-", "COUNT", 1)
        following = self._client.execute_command("XRANGE", self._keys.log, f"{held}-2", "+", "COUNT", 1)
        for entry_id, fields in [*holder, *following]:
            base = int(entry_id.partition(b"-")[0])
            if base + sum(_records(batch) for batch in fields[3::2]) > held:
                return base
        return None

    def _segments(self, start: int) -> Iterator[Any]:
        while page := self._index.segments(start):
            yield from page
            start = page[-1].end_offset

    def _check_space(self, plan: RestorePlan, here: str) -> None:
        info = self._client.info("memory")
        available_bytes = int(info["maxmemory"] * _MEMORY_SHARE) - info["used_memory"]
        if info["maxmemory"] and plan.memory > available_bytes:
            raise UsageError(
                f"{here}: it needs {plan.memory >> 20} MiB of Redis while it runs ({plan.bytes >> 20} MiB after), there"
                f" are {max(available_bytes, 0) >> 20}: raise maxmemory, or restore less"
            )

    # -- filling

    def _fill(self, plan: RestorePlan) -> int:
        """The new stream, from the archive; returns its batches."""
        entry: list[tuple[int, int, bytes]] = []
        size = count = 0
        for base, last, batch in self._archived(plan):
            follows = not entry or base == entry[-1][1] + 1
            if not follows or size + len(batch) > ENTRY_BYTES_MAX or len(entry) == ENTRY_BATCHES_MAX:
                self._add(entry)
                entry, size = [], 0
            entry.append((base, last, batch))
            size, count = size + len(batch), count + 1
        if entry:
            self._add(entry)
        return count

    def _archived(self, plan: RestorePlan) -> Iterator[tuple[int, int, bytes]]:
        """Its batches, in order. Raises DataLoss, SegmentUnreadable."""
        reached = plan.start
        for segment in self._segments(plan.start):
            if segment.from_offset > reached or reached >= plan.end:
                break
            reached = segment.end_offset
            file = SegmentFile(self._folder.filesystem, self._folder.path(segment.file))
            for group in range(file.find(plan.start), len(file.row_groups)):
                batches = file.read(group)
                for at in range(len(batches)):
                    if batches.lasts[at] >= plan.start and batches.bases[at] < plan.end:
                        yield batches.bases[at], batches.lasts[at], bytes(batches.batch(at))
        if reached < plan.end:
            raise DataLoss(f"the log was not changed: the archive's index names no segment with offset {reached}")

    def _add(self, entry: list[tuple[int, int, bytes]]) -> None:
        fields: list[Any] = ["w", _WRITER]
        for _, _, batch in entry:
            fields += ("b", batch)
        self._client.execute_command("XADD", self._keys.restored, f"{entry[0][0]}-1", *fields)
        self._client.expire(self._keys.restored, _ABANDONED_S)
        self._added += 1

    def _swap(self, plan: RestorePlan, server: Server, version: int) -> None:
        """Copy what the log holds until little is missing, then put the new stream in its place."""
        keys, after = self._keys, f"{plan.end}-0"
        for _ in range(_SWAP_TRIES):
            after = self._copy(after)
            code, *swapped = run(
                self._client, SWAP_LOG, [keys.log, keys.restored, keys.meta], server.failover_epoch, server.replid,
                version, plan.start, plan.bytes, _LAST_ENTRIES, keys.wake, plan.held, self._added,
            )  # fmt: skip
            if code == _OFFSET_OUT_OF_RANGE:
                raise ArchiveConflict("brokers trimmed Redis meanwhile: the log was not changed; try again")
            if code:
                raise ArchiveConflict("the server, or one of the streams, was replaced: the log was not changed")
            if swapped[0]:
                return
        raise PipelineError("the log grows faster than it can be copied: the log was not changed")

    def _copy(self, after: str) -> str:
        """Entries behind an id, to the end; returns the last id."""
        while True:
            reply = self._client.execute_command("XRANGE", self._keys.log, f"({after}", "+", "COUNT", _COPIED_ENTRIES)
            for entry_id, fields in reply:
                self._client.execute_command("XADD", self._keys.restored, entry_id, *fields)
                after = entry_id.decode()
                self._added += 1
            if len(reply) < _COPIED_ENTRIES:
                return after


def restore(
    client: Client, prefix: str, topic: Topic, partitions: list[int], start: int, to: int | None,
    folder: ArchiveFolder, *, retry_s: float, anyway: bool, dry_run: bool,
) -> list[dict[str, object]]:  # fmt: skip
    """Partitions one after another; each is whole before the next begins. Raises PipelineError."""
    done: list[dict[str, object]] = []
    for partition in partitions:
        one = Restore(client, prefix, topic, partition, folder, retry_s)
        plan = one.plan(start)
        if plan is None:
            done.append({"partition": partition, "from": start, "to": start, "batches": 0})
            continue
        if to is not None and to < plan.end:
            raise UsageError(
                f"Redis holds one range without a hole: --to must reach {plan.end} in partition {partition}"
            )
        if not anyway:
            one.check_stays(plan)
        done.append({"partition": partition, "from": plan.start, "to": plan.end} if dry_run else one.run(plan))
    return done


def _records(batch: bytes) -> int:
    """The offsets that a batch takes."""
    return int(INT32.unpack_from(batch, LAST_DELTA_AT)[0]) + 1
