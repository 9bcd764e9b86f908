"""The index of one partition's archive, in Redis: which files hold which offsets, where it ends, who may add.

A range is in the archive if the index has it; other files are orphans. Scripts: `redis_scripts/archive`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from tidegate.records.segments import Segment
from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import Client, run

FENCE_ARCHIVE = Script("archive/fence_archive")
PUBLISH_SEGMENTS = Script("archive/publish_segments")
SWAP_SEGMENTS = Script("archive/swap_segments")
RAISE_START = Script("archive/raise_start")

PAGE_SEGMENTS: Final = 1_000


class Archiver(NamedTuple):
    """One start of the archive query. Of two that want a partition the higher number has it; of equals, the later.

    A start takes a number above every fence that it finds, so it is above all that started before it.
    """

    number: int
    token: str

    @classmethod
    def after(cls, fence: int) -> Archiver:
        """A new start; `fence` is the highest that it found."""
        return cls(fence + 1, secrets.token_hex(16))

    @classmethod
    def parse(cls, text: str) -> Archiver:
        """What `str` gave. Raises ValueError."""
        number, _, token = text.partition(":")
        return cls(int(number), token)

    def __str__(self) -> str:
        return f"{self.number}:{self.token}"


class ArchiveState(NamedTuple):
    """Offsets `start` to `end` (exclusive) are archived, -1 where nothing ever was; `fence`: its archiver's number."""

    start: int
    end: int
    fence: int


class Outcome(StrEnum):
    """What became of segments that were published."""

    ADDED = "added"
    DUPLICATE = "duplicate"
    """The archive holds their range: a micro-batch ran again."""
    CONFLICT = "conflict"
    """They begin elsewhere than the archive ends."""
    STALE = "stale"
    """They were read from another primary: Redis failed over or restarted since."""
    FENCED = "fenced"
    """An archiver that started later has the partition."""
    DELETED = "deleted"
    """The topic is gone."""


class Publication(NamedTuple):
    """What became of segments, and where the archive starts and ends after it; -1 where nothing ever was."""

    outcome: Outcome
    start: int
    end: int


def state_of(reply: Sequence[bytes | None]) -> ArchiveState:
    """From the fields ArchiveState._fields of the index."""
    start, end, fence = reply
    return ArchiveState(
        -1 if start is None else int(start), -1 if end is None else int(end), 0 if fence is None else int(fence)
    )


class ArchiveIndex:
    """One partition's archive. Needs no Spark; every method is one command."""

    def __init__(self, client: Client, keys: LogKeys) -> None:
        self._client = client
        self._keys = keys

    def state(self) -> ArchiveState:
        """Where the archive starts and ends now."""
        return state_of(self._client.hmget(self._keys.archive, ArchiveState._fields))

    def segments(self, from_offset: int = 0, limit: int = PAGE_SEGMENTS) -> list[Segment]:
        """The first segments that hold `from_offset` or what follows, in order."""
        found = self._client.zrangebyscore(self._keys.segments, from_offset, "+inf", start=0, num=limit)
        return [Segment.from_json(text) for text in found]

    def all_segments(self, from_offset: int = 0) -> Iterator[Segment]:
        """Every segment in order, page by page: those that hold `from_offset` or what follows."""
        while page := self.segments(from_offset):
            yield from page
            from_offset = page[-1].end_offset

    def fence(self, archiver: Archiver) -> ArchiveState:
        """Take the partition: whoever had it is refused from now on."""
        _, fence, start, end = run(self._client, FENCE_ARCHIVE, [self._keys.archive], *archiver)
        return ArchiveState(start, end, fence)

    def publish(self, archiver: Archiver, segments: Sequence[Segment], read_from: Collection[str]) -> Publication:
        """Add what a micro-batch wrote, in order of offset; all or none.

        `read_from`: `master_replid` of the primaries before the segments were read, one of which must be that of now.
        Raises PipelineError where the segments do not follow each other.
        """
        for before, after in pairwise(segments):
            if after.from_offset != before.end_offset:
                raise PipelineError(
                    f"{after.file} begins at {after.from_offset}, {before.file} ends at {before.end_offset}"
                )
        members = [text for segment in segments for text in (segment.last_offset, segment.to_json())]
        keys = [self._keys.segments, self._keys.archive, self._keys.meta]
        range_ = (segments[0].from_offset, segments[-1].end_offset)
        code, *reply = run(self._client, PUBLISH_SEGMENTS, keys, *archiver, *range_, " ".join(read_from), *members)
        if code:
            return Publication(Outcome.DELETED, -1, -1)
        outcome, start, end = reply
        return Publication(Outcome(outcome.decode()), start, end)

    def swap(self, new: Segment, old: Sequence[Segment]) -> bool:
        """Put one segment in the place of several with the same range; False where one of them is gone."""
        if (new.from_offset, new.last_offset) != (old[0].from_offset, old[-1].last_offset):
            raise PipelineError(f"{new.file} does not have the range of what it replaces")
        texts = [segment.to_json() for segment in old]
        _, swapped = run(self._client, SWAP_SEGMENTS, [self._keys.segments], new.last_offset, new.to_json(), *texts)
        return bool(swapped)

    def raise_start(self, offset: int) -> list[Segment]:
        """Forget the segments wholly below `offset` and the log start; returns them. Their files are left to gc."""
        keys = [self._keys.segments, self._keys.archive, self._keys.meta]
        forgotten: list[Segment] = []
        while True:
            code, *reply = run(self._client, RAISE_START, keys, offset, PAGE_SEGMENTS)
            if code or len(reply) == 1:
                return forgotten
            forgotten += (Segment.from_json(text) for text in reply[1:])

    def forget(self) -> None:
        """Remove the index of a partition whose topic is gone; its files are left to gc."""
        self._client.unlink(self._keys.segments, self._keys.archive)
