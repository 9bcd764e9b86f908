"""Bugs planted on purpose: exact pieces of the product's text, changed in a copy, to see that a run finds them.

A bug in a script changes what is sent to the server, one in a module what is imported; files stay as they are. A bug
must be planted before anything of `tidegate` is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One mutation: `path` from the repository's root, and a text that is there once."""

    path: str
    text: str
    becomes: str
    promise: str
    """What it breaks."""

    @property
    def script(self) -> str:
        """The script's name; "" if the bug is in a module."""
        return self.path.removeprefix("redis_scripts/").removesuffix(".lua") if self.path.endswith(".lua") else ""

    def source_with_bug(self) -> str:
        """The file's text with the bug in it."""
        text = (_ROOT / self.path).read_text("utf-8")
        if text.count(self.text) != 1:
            raise ValueError(f"{self.path} has {self.text!r} {text.count(self.text)} times: update the planted bug")
        return text.replace(self.text, self.becomes)


PLANTED_BUGS: Final = {
    "commit-without-membership-check": PlantedBug(
        "redis_scripts/groups/commit_offsets.lua",
        "if not record then return unknown_member(group) end",
        "if not record then return ERROR.NONE end",
        "P3: who was removed while it hung commits over its successor",
    ),
    "generation-not-raised": PlantedBug(
        "redis_scripts/lib/join_phase.lua",
        "math.max(group.generation, floor) + 1)",
        "math.max(group.generation, floor) + (size > 1 and 1 or 0))",
        "P2: a group that shrinks to one member keeps its generation",
    ),
    "delay-outlasts-rebalance": PlantedBug(
        "broker/tidegate/groups/delayed_heartbeats.py",
        'for delayed_heartbeat in list(self._groups.get(payload.rsplit(b":", 3)[0].decode(), ())):',
        "for delayed_heartbeat in list[DelayedHeartbeat]():",
        "P6: a delayed heartbeat is not released when its group starts to rebalance",
    ),
    "wait-only-for-messages": PlantedBug(
        "broker/tidegate/groups/waiting.py",
        "wait_ms = min(due_ms, self._poll_ms) if due_ms >= 0 else self._poll_ms",
        "wait_ms = due_ms if due_ms >= 0 else 3_600_000",
        "P6: a lost message leaves parked requests waiting",
    ),
    "consumer-partition-before-release": PlantedBug(
        "broker/tidegate/groups/consumer/reconciliation.py",
        "granted = {partition for partition in wanted if owners.get(partition, member.member_id) == member.member_id}",
        "granted = set(wanted)",
        "P7: a partition of a KIP-848 group is decided to have two owners, which the model refuses",
    ),
    "consumer-commit-of-a-former-member": PlantedBug(
        "redis_scripts/groups/commit_consumer_offsets.lua",
        "if not record then return { ERROR.UNKNOWN_MEMBER_ID } end",
        "if not record then return { ERROR.NONE } end",
        "P3: the commit of a removed member of a KIP-848 group is acknowledged",
    ),
    "consumer-sessions-not-renewed": PlantedBug(
        "broker/tidegate/groups/session_renewals.py",
        "        if renewals:",
        "        if not renewals:",
        "P5: heartbeats answered from snapshots extend no session",
    ),
    "consumer-waits-for-ever": PlantedBug(
        "redis_scripts/groups/epoch_heartbeat.lua",
        "string.find(record, CONSUMER.STABLE, rest, true) == rest",
        "rest",
        "P6: a member that waits for partitions is answered as one that has them",
    ),
    "streams-task-before-release": PlantedBug(
        "broker/tidegate/groups/streams/reconciliation.py",
        "if owners.get(task, member.member_id) == member.member_id and task not in process_standby",
        "if task not in process_standby",
        "P7: a task of a streams group is decided to have two owners, which the model refuses",
    ),
    "share-log-not-followed": PlantedBug(
        "broker/tidegate/apis/share_reading.py",
        "            await self._follow_log(partition, acquired.last)",
        "            pass",
        "P3: records that a broker has not noticed are delivered without their data, and finished as gaps",
    ),
    "share-acknowledged-by-anybody": PlantedBug(
        "redis_scripts/share/acknowledge_records.lua",
        "if row.first > next_offset or row.owner ~= member_id then return false end",
        "if row.first > next_offset then return false end",
        "P3: a member whose lock expired accepts what another member has",
    ),
    "share-keys-not-chained": PlantedBug(
        "redis_scripts/share/acquire_records.lua",
        'if key ~= "-" and share_rows.chain(p, row, key) then',
        "if false then",
        "P7: a record does not wait for an earlier one of its key",
    ),
    "share-next-of-key-forgotten": PlantedBug(
        "redis_scripts/lib/share_rows.lua",
        "        unchain(p, found[2])",
        "",
        "P8: a record that waited for its key is never delivered",
    ),
    "unknown-append-acknowledged": PlantedBug(
        "broker/tidegate/log/append.py",
        "        if isinstance(outcome, bytes):",
        "        if isinstance(outcome, bytes | Unknown):",
        "P4: an append whose reply was lost counts as done",
    ),
    "stored-sequences-ignored": PlantedBug(
        "broker/tidegate/log/append.py",
        "producer = planned or state.producers.get(batch.producer_id)",
        "producer = planned",
        "P4: a batch that was sent again after it was stored is stored twice",
    ),
}


def plant(bug: PlantedBug) -> None:
    """Plant a bug in this process."""
    if bug.script:
        from tests.support.includes import replace_include

        replace_include(bug.script, bug.source_with_bug())
        return
    module_name = bug.path.removeprefix("broker/").removesuffix(".py").replace("/", ".")
    if module_name in sys.modules:
        raise RuntimeError(f"{module_name} is imported already")
    sys.meta_path.insert(0, _Finder(module_name, bug))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module_name: str, bug: PlantedBug) -> None:
        self._module_name, self._bug = module_name, bug

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._module_name:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None and found.origin is not None
        loader = _LoaderWithBug(fullname, found.origin)
        loader.text = self._bug.source_with_bug()
        found.loader = loader
        return found


class _LoaderWithBug(importlib.machinery.SourceFileLoader):
    text = ""

    def get_code(self, fullname: str) -> Any:
        return compile(self.text, self.path, "exec", dont_inherit=True)
