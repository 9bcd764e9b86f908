"""Members of consumer and share groups by several libraries: a process a library, with a journal of all its members.

The programs of `tests/clients` follow commands on their stdin and print what their members see; `Programs` starts and
steers them, and turns the journals into one history for `tests.kit.checker`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import redis
from kio.schema.errors import ErrorCode

from bench.clients import Command, go_program, newest_java_program, python_program
from tests.kit.history import Acknowledgement, CommittedFetch, Delivery, Operation, Outcome, now_ns
from tests.kit.wire import RawClient, request
from tests.outside.client_group import TOPIC
from tests.outside.history import GroupHistory
from tidegate.store.keys import GroupKeys

REMOVALS: Final = ("member_left", "member_expired", "member_replaced")
Entry = dict[str, Any]
PROGRAMS: Final[Mapping[str, Callable[[], Command]]] = {
    "java": newest_java_program("GroupJournal"),
    "librdkafka": python_program("confluent_journal.py"),
    "franz": go_program("franz_journal"),
}
ENDING_S: Final = 90.0
OFFSET_FETCH: Final = 9
_ANSWER_S: Final = 10.0


@dataclass(slots=True)
class Library:
    """One library's process, and its journal."""

    process: subprocess.Popen[str]
    journal: Path
    members: dict[str, str] = field(default_factory=dict)
    """Name of a member that was not closed -> its group."""

    def send(self, command: str) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def entries(self) -> list[Entry]:
        """The whole journal so far."""
        return [json.loads(line) for line in self.journal.read_text().splitlines() if line.startswith("{")]


class Programs:
    """The members of a run."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, libraries: Sequence[str]) -> None:
        self.groups: dict[str, str] = {}
        """Name of a member, closed ones too -> its group."""
        self._counts: Counter[str] = Counter()
        self._libraries: dict[str, Library] = {}
        for name in libraries:
            journal = directory / f"{name}.jsonl"
            with journal.open("w") as out, (directory / f"{name}.err").open("w") as errors:
                process = subprocess.Popen(
                    [*PROGRAMS[name](), bootstrap, topic],
                    stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True,
                )  # fmt: skip
            self._libraries[name] = Library(process, journal)

    def join(self, library: str, kind: str, group: str) -> str:
        """A new member; its name."""
        self._counts[library] += 1
        name = f"{library}-{kind}-{self._counts[library]}"
        self._libraries[library].send(f"join {name} {kind} {group}")
        self._libraries[library].members[name] = self.groups[name] = group
        return name

    def close(self, name: str) -> None:
        """The member leaves."""
        library = self._libraries[name.partition("-")[0]]
        del library.members[name]
        library.send(f"close {name}")

    def members(self, group: str) -> list[str]:
        """The members of a group that were not closed."""
        return [name for one in self._libraries.values() for name, of in one.members.items() if of == group]

    def end(self) -> None:
        """All members leave. Raises TimeoutExpired."""
        for library in self._libraries.values():
            assert library.process.stdin is not None
            library.process.stdin.close()
        for library in self._libraries.values():
            library.process.wait(ENDING_S)
            library.members.clear()

    def kill(self) -> None:
        """Whatever happened, no process runs on."""
        for library in self._libraries.values():
            library.process.kill()
            library.process.wait()
            if library.process.stdin is not None:
                with suppress(BrokenPipeError):
                    library.process.stdin.close()

    def journals(self) -> dict[str, list[Entry]]:
        """Each member's entries."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for library in self._libraries.values():
            for entry in library.entries():
                found[entry["m"]].append(entry)
        return found

    def died(self) -> list[Entry]:
        """Members that ended by an error, which no fault of brokers may cause."""
        return [entry for entries in self.journals().values() for entry in entries if entry["kind"] == "died"]

    def owned(self, group: str) -> dict[str, set[int]]:
        """What each open member of a consumer group owns by its own journal."""
        journals, owned = self.journals(), {}
        for name in self.members(group):
            mine = owned[name] = set[int]()
            for entry in journals.get(name, ()):
                if entry["kind"] == "assigned":
                    mine.update(entry["partitions"])
                elif entry["kind"] in ("revoked", "lost"):
                    mine.difference_update(entry["partitions"])
        return owned

    def consumer_history(self, group: str, removed: Mapping[str, int]) -> GroupHistory:
        """What the members of a consumer group saw."""
        history = GroupHistory(group, removed)
        for name, entries in self.journals().items():
            if self.groups[name] == group:
                history.add(name, entries)
        return history

    def share_operations(self, group: str) -> Iterator[Operation]:
        """What the members of a share group saw."""
        for name, entries in self.journals().items():
            if self.groups[name] != group:
                continue
            for entry in entries:
                if entry["kind"] == "delivered":
                    records = tuple((offset, value, count) for offset, value, count in entry["records"])
                    yield Delivery(name, entry["at"], group, str(entry["partition"]), records)
                elif entry["kind"] == "acknowledged":  # a refusal may be the answer to a retry of what was taken
                    outcome = Outcome.OK if entry["error"] is None else Outcome.UNKNOWN
                    yield Acknowledgement(
                        name, entry["began"], entry["at"], group, str(entry["partition"]),
                        tuple(entry["accepted"]), tuple(entry["released"]), outcome,
                    )  # fmt: skip


async def committed_offsets(address: str, group: str, partition_count: int) -> dict[str, int]:
    """Partition -> committed offset, -1 for none, by OffsetFetch. Raises OSError, EOFError, TimeoutError."""
    topics = [{"name": TOPIC, "partition_indexes": tuple(range(partition_count))}]
    groups = [{"group_id": group, "topics": topics}]
    async with asyncio.timeout(_ANSWER_S), await RawClient.connect(address) as client:
        (found,) = (await client.ask(request(OFFSET_FETCH, 8, groups=groups, require_stable=False))).groups
    assert found.error_code is ErrorCode.none, found
    return {str(one.partition_index): one.committed_offset for topic in found.topics for one in topic.partitions}


class Observer:
    """Asks the brokers in turn for a group's committed offsets all the time, as nobody's member.

    By its own client: the admin client of librdkafka frees what it still uses when a broker ends amid such a request
    (confluentinc/librdkafka, pull request 5397), and takes the process of the tests with it.
    """

    def __init__(self, bootstrap: str, group: str, partition_count: int) -> None:
        self.fetched: list[CommittedFetch] = []
        self.group = group
        self._addresses = cycle(bootstrap.split(","))
        self._partition_count = partition_count
        self._failure: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """In a thread until the end of the block. Raises AssertionError where an answer was an error."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _fetch(self) -> None:
        began = now_ns()
        offsets = asyncio.run(committed_offsets(next(self._addresses), self.group, self._partition_count))
        self.fetched.append(CommittedFetch("observer", began, now_ns(), self.group, offsets))

    def _run(self) -> None:
        while not self._over.wait(0.5):
            try:
                self._fetch()
            except (OSError, EOFError, TimeoutError):
                continue  # a broker was killed
            except Exception as failure:  # noqa: BLE001 - raised where the block ends
                self._failure = failure
                return


class StoredGroups:
    """What Redis has of groups."""

    def __init__(self, redis_url: str) -> None:
        self._redis: Any = redis.Redis.from_url(redis_url, decode_responses=True)

    def events(self, group: str) -> list[dict[str, str]]:
        """The group's events, in order."""
        keys = GroupKeys.of("tidegate", 50, "default", group)
        entries = self._redis.xrange(keys.shard_keys.events)
        return [entry for _, entry in entries if entry["group"] == keys.ref]

    def type_of(self, group: str) -> str:
        """`classic`, `consumer`, ..."""
        return str(self._redis.hget(GroupKeys.of("tidegate", 50, "default", group).group, "type"))

    def removed(self, group: str) -> dict[str, int]:
        """Member id -> when the coordinator removed it, by the clock of histories."""
        to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        return {
            event["member"]: int(event["time"]) * 1_000_000 + to_monotonic_ns
            for event in self.events(group)
            if event["kind"] in REMOVALS
        }


def read_by(members: Programs, group: str) -> set[tuple[int, int]]:
    """The places that members of a group have read, or accepted."""
    found: set[tuple[int, int]] = set()
    for name, entries in members.journals().items():
        for entry in entries if members.groups[name] == group else ():
            if entry["kind"] == "read":
                found.update((entry["partition"], offset) for offset, _ in entry["records"])
            elif entry["kind"] == "acknowledged" and entry["error"] is None:
                found.update((entry["partition"], offset) for offset in entry["accepted"])
    return found


@contextmanager
def programs(directory: Path, bootstrap: str, topic: str, libraries: Sequence[str]) -> Iterator[Programs]:
    """The libraries' processes, which end with the block. Raises PeerUnavailable."""
    started = Programs(directory, bootstrap, topic, libraries)
    try:
        yield started
    finally:
        started.kill()


def wait_until(holds: Callable[[], bool], within_s: float, what: Callable[[], object]) -> None:
    """Wait for a condition. Raises AssertionError with `what`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.5)
