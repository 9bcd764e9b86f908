"""A job that is killed again and again while clients produce, and the account of what must be left in the end.

`Producing` keeps the sums of what brokers acknowledged; `killed_often` starts the job in a session of its own and kills
all of it (driver, JVM, Python workers) at random moments after it was seen to do something. What the job made of it
is summed up the same way, by `Sums.of`.

Most of a kill's cost is the next start, so the JVM leaves out what only a long run repays (`_JVM`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import REPOSITORY

_JVM: Final = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""One quick compiler, and no threads for collections: a sixth less CPU until the first micro-batch."""

Row = tuple[int, int, bytes]
"""Partition, offset, value."""


@dataclass(frozen=True, slots=True)
class Sums:
    """How many rows, how many distinct (partition, offset), and the sum of the CRCs of their values."""

    rows: int
    distinct: int
    crc_sum: int

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Sums:
        """Of what a job wrote, or of what was acknowledged."""
        tally = Tally()
        for row in rows:
            tally.add(*row)
        return tally.sums


class Tally:
    """Sums in the making, from any thread."""

    def __init__(self) -> None:
        self._rows, self._crc_sum = 0, 0
        self._places: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def add(self, partition: int, offset: int, value: bytes) -> None:
        """One more row."""
        with self._lock:
            self._rows += 1
            self._crc_sum += zlib.crc32(value)
            self._places.add((partition, offset))

    @property
    def sums(self) -> Sums:
        """Of what was added."""
        return Sums(self._rows, len(self._places), self._crc_sum)


class Producing:
    """Two idempotent producers, one compressing, until the block ends: then all is acknowledged, or it raises."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int, records_per_second: int = 300) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._seed, self._pause_s = seed, 10 / records_per_second
        self._stop = threading.Event()
        self._acknowledged = Tally()
        self._failures: list[str] = []
        self._threads = [threading.Thread(target=self._write, args=(codec,)) for codec in ("none", "lz4")]

    def create_topic(self, config: Mapping[str, str]) -> None:
        """Make the topic, and wait for it."""
        new = NewTopic(self._topic, self._partitions, config=dict(config))
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for made in admin.create_topics([new]).values():
            made.result(30)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    @property
    def acknowledged(self) -> Sums:
        """What was acknowledged to clients."""
        return self._acknowledged.sums

    def _write(self, codec: str) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 20, "compression.type": codec, "log_level": 0}
        producer = Producer({"bootstrap.servers": self._bootstrap, **settings})
        chance = random.Random(f"{self._seed} {codec}")
        while not self._stop.is_set():
            for _ in range(5):
                value = chance.randbytes(chance.randint(0, 50)) * chance.randint(1, 10)
                producer.produce(
                    self._topic, value, partition=chance.randrange(self._partitions), on_delivery=self._reported
                )
            producer.poll(0)
            self._stop.wait(self._pause_s)
        if left := producer.flush(120):
            self._failures.append(f"{left} records were not delivered")

    def _reported(self, error: Any, message: Any) -> None:
        if error is None:
            self._acknowledged.add(message.partition(), message.offset(), message.value() or b"")
        else:
            self._failures.append(str(error))


@dataclass(slots=True)
class JobUnderTest:
    """A command that runs jobs. `progress` has a value for each, which changes whenever it got something done."""

    command: Sequence[str]
    environment: dict[str, str]
    progress: Callable[[], Sequence[object]]
    log: Path

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, with more arguments."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.command, *more], cwd=REPOSITORY, env={**os.environ, **_JVM, **self.environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def run_to_the_end(self, *more: str, timeout_s: float = 240) -> None:
        """Start it and wait for a good end."""
        process = self.start(*more)
        try:
            status = process.wait(timeout_s)
        finally:
            kill_session(process)
        assert status == 0, f"exit status {status}:\n{self.tail()}"

    def tail(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace")[-6_000:]


def kill_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL every process of the session that `leader` began, until there is none.

    By session, as PySpark's daemon puts itself into another process group than the JVM that started it.
    """
    while members := _session(leader.pid):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    leader.wait()


def _session(session: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(after_name[3]) == session and after_name[0] not in "ZX":
                members.append(int(entry.name))
    return members


def killed_often(
    job: JobUnderTest,
    kills: int,
    seed: int,
    more: Sequence[str] = (),
    spread_s: float = 4.0,
    patience_s: float = 600.0,
) -> list[float]:
    """Start the job with arguments `more` and kill it, at a random moment within `spread_s` after all made progress.

    That `kills` times, or until TIDEGATE_KILL_SECONDS have passed. Returns how long each lived after its progress.
    Raises AssertionError where it ends by itself or does nothing.
    """
    chance = random.Random(seed)
    lived: list[float] = []
    last_start = time.monotonic() + float(os.environ.get("TIDEGATE_KILL_SECONDS", "inf"))
    while len(lived) < kills and (not lived or time.monotonic() < last_start):
        before = job.progress()
        process = job.start(*more)
        try:
            deadline = time.monotonic() + patience_s
            while any(map(eq, job.progress(), before)):
                assert process.poll() is None, f"it ended by itself, status {process.returncode}:\n{job.tail()}"
                assert time.monotonic() < deadline, f"nothing was done for {patience_s:.0f} s:\n{job.tail()}"
                time.sleep(0.01)
            moment_s = chance.uniform(0, spread_s)
            time.sleep(moment_s)
            assert process.poll() is None, f"it ended by itself, status {process.returncode}:\n{job.tail()}"
        finally:
            kill_session(process)
        lived.append(moment_s)
    return lived
