"""The index of an archive: published once by offset, fenced, swapped, cut at its start. On the real server."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import Any

import pytest

from tests.support.archive import PresentIndex, log_keys, make_log, segment
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.archive.index import Archiver, ArchiveState, Outcome, Publication
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import connect, replids

KEYS = log_keys()
A = Archiver(1, "a")


@pytest.fixture
def client(client: Any) -> Any:
    make_log(client, KEYS)
    return client


@pytest.fixture
def index(client: Any) -> PresentIndex:
    return PresentIndex(client, KEYS)


def test_partition_that_was_never_archived_has_no_state(index: PresentIndex) -> None:
    assert index.state() == ArchiveState(-1, -1, 0)
    assert index.segments() == []


def test_segments_are_added_where_the_archive_ends(index: PresentIndex) -> None:
    index.fence(A)

    first = index.publish(A, [segment(5, 10), segment(10, 30)])
    second = index.publish(A, [segment(30, 31)])

    assert first == Publication(Outcome.ADDED, 5, 30)
    assert second == Publication(Outcome.ADDED, 5, 31)
    assert index.state() == ArchiveState(5, 31, 1)
    assert index.segments() == [segment(5, 10), segment(10, 30), segment(30, 31)]
    assert index.segments(9, limit=1) == [segment(5, 10)]
    assert index.segments(10, limit=1) == [segment(10, 30)]
    assert index.segments(31) == []


def test_range_may_begin_before_its_first_record(index: PresentIndex) -> None:
    index.publish(A, [segment(0, 10)])

    outcome = index.publish(A, [segment(10, 30, base_offset=17)])

    assert outcome == Publication(Outcome.ADDED, 0, 30)
    assert index.segments(12) == [segment(10, 30, base_offset=17)]


def test_commit_rerun_micro_batch_is_a_duplicate_however_it_is_sliced(index: PresentIndex) -> None:
    index.publish(A, [segment(0, 10), segment(10, 30)])

    again = index.publish(A, [segment(0, 10, "b"), segment(10, 30, "b")])
    cut_elsewhere = index.publish(A, [segment(0, 20, "c"), segment(20, 30, "c")])

    assert {again, cut_elsewhere} == {Publication(Outcome.DUPLICATE, 0, 30)}
    assert index.segments() == [segment(0, 10), segment(10, 30)]


@pytest.mark.parametrize(("from_offset", "end_offset"), [(31, 40), (29, 40), (0, 31), (40, 50)])
def test_commit_that_begins_elsewhere_is_a_conflict_and_changes_nothing(
    index: PresentIndex, from_offset: int, end_offset: int
) -> None:
    index.publish(A, [segment(0, 30)])

    assert index.publish(A, [segment(from_offset, end_offset, "b")]) == Publication(Outcome.CONFLICT, 0, 30)
    assert index.segments() == [segment(0, 30)]
    assert index.state() == ArchiveState(0, 30, 1)


def test_segments_with_a_hole_between_them_are_not_even_sent(index: PresentIndex) -> None:
    with pytest.raises(PipelineError, match=r"b\.parquet begins at 11, a\.parquet ends at 10"):
        index.publish(A, [segment(0, 10), segment(11, 30, "b")])
    assert index.state().end == -1


def test_new_start_of_the_query_fences_the_one_before(index: PresentIndex) -> None:
    old, new = Archiver(1, "old"), Archiver(2, "new")
    assert index.fence(old) == ArchiveState(-1, -1, 1)
    index.publish(old, [segment(0, 10)])

    assert index.fence(new) == ArchiveState(0, 10, 2)
    assert index.fence(new) == ArchiveState(0, 10, 2), "a repeat changes nothing"

    assert index.publish(old, [segment(10, 20)]) == Publication(Outcome.FENCED, 0, 10)
    assert index.publish(old, [segment(0, 10)]) == Publication(Outcome.FENCED, 0, 10)
    assert index.publish(new, [segment(10, 20)]) == Publication(Outcome.ADDED, 0, 20)


def test_lease_of_two_that_started_together_belongs_to_the_last(index: PresentIndex) -> None:
    one, other = Archiver(5, "one"), Archiver(5, "other")

    assert [index.fence(one).fence, index.fence(other).fence] == [5, 6]

    assert index.publish(one, [segment(0, 10)]).outcome is Outcome.FENCED
    assert index.publish(other, [segment(0, 10)]).outcome is Outcome.ADDED


def test_commit_late_partition_starts_at_the_newer_start(index: PresentIndex) -> None:
    """It was not there, or not to be archived, when the query started and fenced the others."""
    first, second, third = Archiver(1, "first"), Archiver(2, "second"), Archiver(2, "third")

    assert index.publish(first, [segment(0, 10)]).outcome is Outcome.ADDED
    assert index.publish(second, [segment(10, 20)]).outcome is Outcome.ADDED

    assert index.publish(first, [segment(20, 30)]).outcome is Outcome.FENCED
    assert index.publish(third, [segment(20, 30)]).outcome is Outcome.FENCED, "of equals, who is there has it"
    assert index.state() == ArchiveState(0, 20, 2)


def test_publish_after_fail_over_is_refused(debugged_valkey: ValkeyServer) -> None:
    """The new primary may lack the end of the log that the segments were written from."""
    client = connect(debugged_valkey.url)
    make_log(client, KEYS)
    index = PresentIndex(client, KEYS)
    read_from = replids(client)
    index.publish(A, [segment(0, 30)])
    client.execute_command("DEBUG", "CHANGE-REPL-ID")

    assert index.publish(A, [segment(30, 40)], read_from) == Publication(Outcome.STALE, 0, 30)
    assert index.publish(A, [segment(0, 30)], read_from) == Publication(Outcome.DUPLICATE, 0, 30)
    assert index.segments() == [segment(0, 30)]
    assert index.publish(A, [segment(30, 36)]) == Publication(Outcome.ADDED, 0, 36)


def test_deleted_topic_takes_nothing(index: PresentIndex, client: Any) -> None:
    client.hset(KEYS.meta, "state", "deleted")
    assert index.publish(A, [segment(0, 10)]).outcome is Outcome.DELETED
    client.delete(KEYS.meta)
    assert index.publish(A, [segment(0, 10)]).outcome is Outcome.DELETED

    assert client.exists(KEYS.segments, KEYS.archive) == 0


def test_commit_lost_checkpoint_query_continues_at_the_end_of_the_archive(index: PresentIndex) -> None:
    """Its micro-batches are numbered from 0 again; nothing new may be taken for something old."""
    archiver = Archiver(1, "first")
    index.fence(archiver)
    for start in range(0, 50, 10):
        index.publish(archiver, [segment(start, start + 10)])

    end = index.fence(Archiver(2, "second")).end

    assert end == 50
    assert index.publish(Archiver(2, "second"), [segment(end, 75)]).outcome is Outcome.ADDED
    assert [one.from_offset for one in index.all_segments()] == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("seed", range(5))
def test_two_drivers_at_once_leave_one_chain(valkey: ValkeyServer, client: Any, seed: int) -> None:
    """Each reads the end, writes, publishes, and now and then starts again; pauses fall anywhere."""

    def drive(name: str) -> None:
        chance = random.Random(f"{seed} {name}")
        own = PresentIndex(connect(valkey.url), KEYS)
        starts = added = 0
        together.wait(30)
        archiver: Archiver | None = None
        while (state := own.state()).end < 2_000 or not added:
            if archiver is None:
                starts += 1
                archiver = Archiver(state.fence + 1, f"{name}-{starts}")
                state = own.fence(archiver)
            start = max(state.end, 0)
            end = start + chance.randint(1, 20)
            middle = chance.randint(start, end - 1)
            cut = [segment(start, end, archiver.token)]
            if middle > start:
                cut = [segment(start, middle, archiver.token), segment(middle, end, archiver.token)]
            reported = own.publish(archiver, cut)
            if chance.random() < 0.3:  # its reply was lost: it publishes again
                again = own.publish(archiver, cut)
                assert reported.outcome is not Outcome.ADDED or again.outcome in (Outcome.DUPLICATE, Outcome.FENCED)
            if reported.outcome is Outcome.ADDED:
                added += 1
            else:
                archiver = None

    together = threading.Barrier(2)
    threads = [threading.Thread(target=drive, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    index = PresentIndex(client, KEYS)
    chain = list(index.all_segments())
    assert chain[0].from_offset == index.state().start == 0
    assert chain[-1].end_offset == index.state().end
    assert all(after.from_offset == before.end_offset for before, after in pairwise(chain))
    assert len({one.file.partition("-")[0] for one in chain}) == 2, "both had their turns"


def test_compaction_swaps_in_one_segment_for_several(index: PresentIndex) -> None:
    old = [segment(0, 10), segment(10, 20), segment(20, 30)]
    index.publish(A, [*old, segment(30, 40)])

    assert index.swap(segment(0, 30, "merged"), old)
    assert index.swap(segment(0, 30, "merged"), old), "a repeat finds it done"

    assert index.segments() == [segment(0, 30, "merged"), segment(30, 40)]
    assert index.state() == ArchiveState(0, 40, 1)


def test_two_compactions_of_the_same_segments_leave_one(index: PresentIndex) -> None:
    old = [segment(0, 10), segment(10, 20), segment(20, 30)]
    index.publish(A, old)

    assert index.swap(segment(0, 20, "one"), old[:2])

    assert not index.swap(segment(0, 30, "other"), old)
    assert index.segments() == [segment(0, 20, "one"), segment(20, 30)]


def test_swap_keeps_the_range(index: PresentIndex) -> None:
    index.publish(A, [segment(0, 10), segment(10, 20)])

    with pytest.raises(PipelineError, match="does not have the range"):
        index.swap(segment(0, 19, "merged"), [segment(0, 10), segment(10, 20)])


def test_start_is_raised_to_the_log_start_at_most(index: PresentIndex, client: Any) -> None:
    segments = [segment(start, start + 10) for start in range(0, 50, 10)]
    index.publish(A, segments)
    client.hset(KEYS.meta, "log_start", 25)

    assert index.raise_start(1_000) == segments[:2]
    assert index.raise_start(1_000) == []
    assert index.state() == ArchiveState(20, 50, 1)
    assert index.segments() == segments[2:]

    client.hset(KEYS.meta, "log_start", 50)
    assert index.raise_start(1_000) == segments[2:]
    assert index.state() == ArchiveState(50, 50, 1)
    assert index.publish(A, [segment(50, 60)]).outcome is Outcome.ADDED


def test_commit_deleted_index_stays_absent(index: PresentIndex, client: Any) -> None:
    index.publish(A, [segment(0, 10)])
    index.forget()

    assert client.exists(KEYS.segments, KEYS.archive) == 0
