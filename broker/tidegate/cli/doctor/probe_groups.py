"""Groups that have waited for too long: for members to reach their assignment, for dead letters to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.diagnosis.formatting import format_duration
from tidegate.store.keys import GroupKeys, ShardKeys

LATE_MS: Final = 300_000
"""Rebalance timeouts of clients are five minutes by default."""
LETTERS_LATE_MS: Final = 60_000
_DEAD_LETTERS: Final = b"dead-letters|"
_ON_THE_WAY: Final = (b"consumer Assigning ", b"consumer Reconciling ")
_FOUND_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class LateGroup:
    """A group, its state or "" if its dead letters are late, and for how long."""

    org: str
    group_id: str
    state: str
    age_ms: int


def late_groups(client: Any, prefix: str, shards: int, now_ms: int) -> Iterator[LateGroup]:
    """The groups of KIP-848 whose members are late, and the share groups whose dead letters are."""
    for shard in range(shards):
        keys = ShardKeys(prefix, shard)
        for ref, kind in client.hgetall(keys.groups).items():
            if kind.startswith(_ON_THE_WAY):
                since_ms = int(client.hget(_keys(prefix, shards, ref).group, "state_since") or now_ms)
                if now_ms - since_ms >= LATE_MS:
                    yield _late(prefix, shards, ref, kind.split()[1].decode(), now_ms - since_ms)
        for item in client.zrangebyscore(keys.deadlines, "(0", "+inf"):
            if item.startswith(_DEAD_LETTERS):
                ref = item.removeprefix(_DEAD_LETTERS)
                first = client.xrange(_keys(prefix, shards, ref).dead_letters, count=1)
                age_ms = now_ms - int(first[0][0].split(b"-")[0]) if first else 0
                if age_ms >= LETTERS_LATE_MS:
                    yield _late(prefix, shards, ref, "", age_ms)


def _keys(prefix: str, shards: int, ref: bytes) -> GroupKeys:
    org, _, encoded = ref.decode().partition("/")
    return GroupKeys.of(prefix, shards, org, unquote(encoded))


def _late(prefix: str, shards: int, ref: bytes, state: str, age_ms: int) -> LateGroup:
    keys = _keys(prefix, shards, ref)
    return LateGroup(keys.org, keys.group_id, state, age_ms)


def judge(groups: tuple[LateGroup, ...]) -> Iterator[Finding]:
    """All findings, those of the longest wait first."""
    for one in sorted(groups, key=lambda one: -one.age_ms)[:_FOUND_MAX]:
        where, age = f"{one.org}/{one.group_id}", format_duration(one.age_ms)
        if one.state:
            yield Finding(
                "group-not-stable",
                Severity.WARNING,
                where,
                f"The members of group {one.group_id} have not reached their assignment for {age}: it is {one.state}.",
                ("Partitions whose owner did not give them up, or that wait for a member that left, are not read.",),
                f"`tidegate group explain {one.group_id}` names who holds back whom.",
            )
        else:
            yield Finding(
                "dead-letters-late",
                Severity.WARNING,
                where,
                f"Failed records of share group {one.group_id} wait for their dead-letter topic for {age}.",
                ("Brokers try again every few seconds. While 10,000 entries wait, the group gets no records.",),
                "The brokers' log says why (dead_letters_not_written).",
            )
