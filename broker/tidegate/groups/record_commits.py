"""Commits of partitions of format record, which the script that stores them acknowledges in their Redis groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidegate.store.link import Arg


class RecordCommit(NamedTuple):
    """One partition of a commit, on one Redis server; on Redis Cluster a second script acknowledges."""

    records: str
    meta: str
    readers: str
    group_id: str
    before: str
    """The stream id before the committed offset."""


def add_record_commits(commits: Iterable[Sequence[RecordCommit]], key_names: list[str], args: list[Arg]) -> None:
    """Append the partitions of a call's commits to its KEYS and ARGV, as `lib/acknowledge_commits` reads them."""
    for number, partitions in enumerate(commits):
        for one in partitions:
            key_names += (one.records, one.meta, one.readers)
            args += (number, one.group_id, one.before)
