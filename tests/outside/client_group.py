"""A group of one library's members, each in a process of its own, and changes of its membership; writers beside it.

Each group has two static members and a dynamic one. One thread a group changes its membership now and then and waits
until the group is stable; in between, whatever happens to brokers, its generation must not change.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from bench.cluster import REPOSITORY
from tests.outside.history import GroupHistory
from tests.outside.journal import JournalReader
from tests.outside.member import MemberSpec
from tidegate.store.keys import GroupKeys

TOPIC: Final = "outside"
PARTITIONS: Final = 12
IDLE_WAIT_S: Final = 100.0
STABLE_S: Final = 1.5
CHANGE_EVERY_S: Final = (5.0, 10.0)
STOP_S: Final = 100.0

LIBRARIES: Final = ("librdkafka", "kafka_python", "aiokafka")


class Process:
    """A client's process with its journal; what it prints goes to a file beside it."""

    def __init__(self, directory: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self.reader = JournalReader(directory / f"{name}.jsonl")
        self.printed = directory / f"{name}.out"
        with self.printed.open("ab") as out:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def stop(self) -> None:
        """SIGTERM, and wait. Raises TimeoutExpired."""
        self.process.terminate()
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class ClientGroup:
    """One library's group: its running members, and what was changed when."""

    directory: Path
    library: str
    bootstrap: str
    redis_url: str
    random: random.Random
    running: dict[str, Process] = field(default_factory=dict)
    """Role -> its process; static roles keep their instance id."""
    stopped: list[Process] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    steady: list[tuple[int, int]] = field(default_factory=list)
    """From when the group was stable to its next change, in ms of the wall clock."""
    returns: list[tuple[str, int, int]] = field(default_factory=list)
    """Client id of a static member that was started again, and from when to when it returned, in ms."""
    idle_wait_s: list[float] = field(default_factory=list)
    owned: dict[str, set[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _counter: Any = field(default_factory=itertools.count)

    @property
    def group_id(self) -> str:
        """Its group id."""
        return f"{self.library}-group"

    def start(self, role: str) -> None:
        """Start a process for this role."""
        number = next(self._counter)
        name = f"{self.library}-{role}-{number}"
        static = role.startswith("static")
        spec = MemberSpec(
            library=self.library,
            name=name,
            group=self.group_id,
            topic=TOPIC,
            bootstrap=self.bootstrap,
            journal=str(self.directory / f"{name}.jsonl"),
            instance_id=f"{self.library}-{role}" if static else None,
            synchronous=number % 2 == 0,
            seed=self.random.randrange(1 << 32),
        )
        self.running[role] = Process(self.directory, name, spec.command())

    def stop(self, role: str) -> None:
        """Stop the process of this role."""
        stopping = self.running.pop(role)
        stopping.stop()
        self.stopped.append(stopping)

    def change(self) -> None:
        """One change of membership, then wait until the group is stable."""
        if "extra" in self.running:
            action, role = "leaves", "extra"
        else:
            action, role = self.random.choice(
                [("joins", "extra"), ("joins", "extra"), ("comes back", "static-1"), ("comes back", "static-2")]
            )
        self.changes.append(f"{role} {action}")
        if action == "comes back":  # within its session: no change at all to the others
            self._restart(role)
            return
        self.end_stable()
        if action == "joins":
            self.start(role)
        else:
            self.stop(role)
        self.stabilize()
        self.begin_stable()

    def _restart(self, role: str) -> None:
        began_ms = _now_ms()
        self.stop(role)
        self.start(role)
        try:
            self.stabilize()
        finally:
            self.returns.append((self.running[role].name, began_ms, _now_ms()))

    # -- when no rebalance is expected

    def begin_stable(self) -> None:
        """From now on the generation must not change."""
        self.steady.append((_now_ms(), 0))

    def end_stable(self) -> None:
        """Until now it must not have changed."""
        began, _ = self.steady.pop()
        self.steady.append((began, _now_ms()))

    def stabilize(self) -> None:
        """Until each partition is owned once, by the members' own journals, for a while. Raises TimeoutError."""
        began = time.monotonic()
        whole_since = None
        while time.monotonic() - began < IDLE_WAIT_S:
            time.sleep(0.1)
            whole = self._whole() and self._state() == "Stable"
            whole_since = (whole_since or time.monotonic()) if whole else None
            if whole_since is not None and time.monotonic() - whole_since > STABLE_S:
                self.idle_wait_s.append(whole_since - began)
                return
        raise TimeoutError(f"{self.group_id} is not stable: {self.owned}, {self._state()}")

    def _whole(self) -> bool:
        for process in self.running.values():
            if process.process.poll() is not None:
                raise RuntimeError(f"{process.name} ended:\n{process.printed.read_text()[-2000:]}")
            owned = self.owned.setdefault(process.name, set())
            for entry in process.reader.more():
                if entry["kind"] == "assigned":
                    owned.update(entry["partitions"])
                elif entry["kind"] in ("revoked", "lost"):
                    owned.difference_update(entry["partitions"])
        every = [partition for process in self.running.values() for partition in self.owned[process.name]]
        return sorted(every) == list(range(PARTITIONS)) and all(self.owned[one.name] for one in self.running.values())

    def _state(self) -> str:
        with redis.Redis.from_url(self.redis_url, decode_responses=True) as client:
            return str(client.hget(self._keys.group, "state"))

    @property
    def _keys(self) -> GroupKeys:
        return GroupKeys.of("tidegate", 50, "default", self.group_id)

    # -- the end

    def change_until(self, until: threading.Event) -> None:
        """Change the membership now and then; failures are kept for the check."""
        try:
            while not until.wait(self.random.uniform(*CHANGE_EVERY_S)):
                self.change()
        except Exception as error:  # noqa: BLE001 - a thread has no caller to raise to
            self.failures.append(repr(error))

    def processes(self) -> list[Process]:
        """Every process, stopped ones first."""
        return [*self.stopped, *self.running.values()]

    def events(self) -> list[dict[str, str]]:
        """The group's events, in order."""
        with redis.Redis.from_url(self.redis_url, decode_responses=True) as client:
            entries: Any = client.xrange(self._keys.shard_keys.events)
        return [entry for _, entry in entries if entry["group"] == self._keys.ref]

    def unexpected_rebalances(self) -> list[dict[str, str]]:
        """Events of a rebalance while the membership did not change.

        Left out is the one rebalance of a returning leader that asked to join twice, as Kafka begins one then: its
        broker was killed after it had joined and before it had its assignment.
        """
        kinds = ("rebalance_started", "barrier_joined", "member_expired", "emptied")
        unexpected, excused = [], set()
        for event in self.events():
            now_ms, generation = int(event["time"]), int(event["generation"])
            if event["kind"] not in kinds or not any(began < now_ms < ended for began, ended in self.steady):
                continue
            if self._is_returning_leader(event):
                excused.add(generation + 1)
            elif event["kind"] != "barrier_joined" or generation not in excused:
                unexpected.append(event)
        return unexpected

    def _is_returning_leader(self, event: dict[str, str]) -> bool:
        now_ms = int(event["time"])
        return event["cause"] == "leader_rejoined" and any(
            event["client_id"] == client_id and began <= now_ms <= ended for client_id, began, ended in self.returns
        )

    def history(self) -> GroupHistory:
        """The history of its members."""
        to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        removed, replaced = {}, set()
        for event in self.events():
            before = event["detail"].rpartition(" ")[2]  # behind its host
            gone = before if event["kind"] == "member_replaced" else event["member"]
            if event["kind"] == "member_replaced":
                replaced.add(gone)
            if event["kind"] in ("member_left", "member_expired", "member_replaced"):
                removed[gone] = int(event["time"]) * 1_000_000 + to_monotonic_ns
        history = GroupHistory(self.group_id, removed, replaced)
        for process in self.processes():
            list(process.reader.more())
            history.add(process.name, process.reader.entries)
        return history


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def writer(directory: Path, library: str, bootstrap: str) -> Process:
    """An idempotent producer."""
    name = f"{library}-writer"
    arguments = [library, TOPIC, str(PARTITIONS), bootstrap, str(directory / f"{name}.jsonl")]
    return Process(directory, name, [sys.executable, "-m", "tests.outside.writer", *arguments])
