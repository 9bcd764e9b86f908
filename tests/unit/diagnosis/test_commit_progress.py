"""`CommitProgress` follows whole groups, up to a number of partitions, however their samples come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.diagnosis import commit_progress
from tidegate.diagnosis.commit_progress import PARTITIONS_MAX, CommitProgress, Progress
from tidegate.store.foreign_entries import ForeignEntries, StreamEntry

STORE: Any = SimpleNamespace(foreign_entries=ForeignEntries(), cluster_keys=SimpleNamespace(lag="lag"))
ENTRIES_PER_PAGE = 7


def entries(
    sizes: Mapping[str, int], entry_size: int, time_ms: int, owned: Iterable[str] = ()
) -> Iterator[StreamEntry]:
    """One sample of each group, of so many partitions."""
    for ref, size in sizes.items():
        text = b"committed=3 lag=7 member=" + (b"m" if ref in owned else b"")
        for first in range(0, size, entry_size):
            values = [b"time", b"%d" % time_ms, b"group", ref.encode()]
            for index in range(first, min(first + entry_size, size)):
                values += [b"t:%d" % index, text]
            yield b"%d-%d" % (time_ms, first), values


def held(progress: CommitProgress) -> int:
    return sum(len(group.streaks) for group in progress._groups.values())


def take(progress: CommitProgress, some: Iterable[StreamEntry]) -> None:
    """Take entries in pages; never more partitions are held than the limit."""
    page: list[StreamEntry] = []
    for entry in [*some, None]:
        if entry is not None:
            page.append(entry)
        if entry is None or len(page) == ENTRIES_PER_PAGE:
            progress._take(page, STORE)
            page = []
            assert held(progress) <= commit_progress.PARTITIONS_MAX


def sizes_of(progress: CommitProgress) -> dict[str, int]:
    return {ref: len(group.streaks) for ref, group in progress._groups.items()}


def groups(count: int, size: int) -> dict[str, int]:
    return {f"default/g{number}": size for number in range(count)}


def test_groups_that_grow_beyond_the_limit_are_followed_whole_or_not() -> None:
    progress = CommitProgress()
    take(progress, entries(groups(40, 500), 500, 1))
    assert held(progress) == PARTITIONS_MAX

    take(progress, entries(groups(40, 5_000), 500, 2))

    assert set(sizes_of(progress).values()) == {5_000}


@pytest.mark.parametrize("limit", [200, 230, 249, 45])
def test_large_groups_are_followed_whole_or_not_at_each_sample(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(commit_progress, "PARTITIONS_MAX", limit)
    progress = CommitProgress()

    for time_ms in range(5):
        take(progress, entries(groups(8, 53), 5, time_ms))
        assert sizes_of(progress) == groups(limit // 53, 53)


def test_group_is_followed_whole_once_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_progress, "PARTITIONS_MAX", 100)
    progress, sizes = CommitProgress(), groups(3, 40)
    for time_ms in range(3):
        take(progress, entries(sizes, 5, time_ms))
    assert sizes_of(progress) == groups(2, 40)

    commits: Any = [SimpleNamespace(topic="t", partition=index, offset=3) for index in range(40)]
    take(progress, entries(sizes, 5, 3, owned=["default/g0"]))
    assert progress.of("default/g2", commits, 4) is None, "not all its partitions were sampled since"
    take(progress, entries(sizes, 5, 4, owned=["default/g0"]))

    assert sizes_of(progress) == {"default/g1": 40, "default/g2": 40}
    assert progress.of("default/g1", commits, 5) == Progress(0, False)
    assert progress.of("default/g2", commits, 5) == Progress(4, False)


def test_group_that_loses_partitions_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_progress, "PARTITIONS_MAX", 30)
    progress = CommitProgress()
    take(progress, entries({"default/g": 40}, 5, 0))
    assert sizes_of(progress) == {}

    for time_ms in range(1, 9):  # the partition at which it was refused is never in a sample again
        take(progress, entries({"default/g": 20}, 5, time_ms))

    assert sizes_of(progress) == {"default/g": 20}


def test_few_groups_are_remembered_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_progress, "PARTITIONS_MAX", 30)
    monkeypatch.setattr(commit_progress, "_REFUSED_MAX", 4, raising=False)
    progress = CommitProgress()

    for time_ms in range(3):
        take(progress, entries({**groups(20, 40), "default/small": 1}, 5, time_ms))

    assert len(progress._refused) == 4
    assert sizes_of(progress) == {}
