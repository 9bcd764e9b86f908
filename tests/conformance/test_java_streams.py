"""Kafka Streams with `group.protocol=streams` on three brokers: a word count, changes of members, a killed broker.

At last a process without state begins: it restores its stores from the changelog topic, which has been compacted.
"""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from typer.testing import CliRunner

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, streams_jars
from tests.support.scraping import Scrape
from tidegate.command_line import command_line

pytestmark = [pytest.mark.peer, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "clients" / "java" / "WordCount.java"
GROUP, LINES, COUNTS = "app", "lines", "counts"
CHANGELOG = f"{GROUP}-counts-changelog"
TASKS = {f"{subtopology}_{index}" for subtopology in (0, 1) for index in range(4)}
DEADLINE_S = 120


class Application:
    """One process with two threads; `tasks` asks it which active and standby tasks they run."""

    def __init__(self, jars: str, cluster: Cluster, directory: Path, guarantee: str) -> None:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars, str(PROGRAM)]
        arguments = [cluster.bootstrap, GROUP, LINES, COUNTS, str(directory), guarantee]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.output.append(line)
            self._lines.put(line.strip())

    def tasks(self) -> tuple[set[str], set[str]]:
        """Active and standby tasks of all threads; a task that two threads report is a failure."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        active, standby = list[str](), list[str]()
        while (line := self._lines.get(timeout=DEADLINE_S)) != "asked":
            if line.startswith("thread "):
                found = [part.partition("]")[0] for part in line.split("[")[1:]]
                active += filter(None, found[0].split(", "))
                standby += filter(None, found[1].split(", "))
        assert len(active) == len(set(active))
        return set(active), set(standby)

    def kill(self) -> None:
        """End the process, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def close(self) -> None:
        """End its input, on which it leaves the group."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0, "".join(self.output[-40:])
        assert any("closed" in line for line in self.output)


@contextmanager
def running(jars: str, cluster: Cluster, directory: Path, guarantee: str) -> Iterator[Application]:
    application = Application(jars, cluster, directory, guarantee)
    try:
        yield application
    finally:
        application.kill()


def wait_until(holds: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


class Words:
    """Lines that are produced, and the last count of each word that a reader of committed records finds."""

    def __init__(self, cluster: Cluster) -> None:
        config = {"bootstrap.servers": cluster.bootstrap}
        self._producer = Producer({**config, "enable.idempotence": True})
        self._consumer = Consumer(
            {**config, "group.id": "reader", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        )
        self._consumer.subscribe([COUNTS])
        self._numbers = itertools.count()
        self.sent: Counter[str] = Counter()
        self.read: dict[str, int] = {}

    def produce(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            words = [f"w{number % 7}", f"w{number % 5}"]
            self.sent.update(words)
            self._producer.produce(LINES, " ".join(words), key=str(number))
        assert self._producer.flush(DEADLINE_S) == 0

    def wait_counted(self) -> None:
        """Until the counts are those of what was produced; with exactly-once processing none is ever above."""
        deadline = time.monotonic() + DEADLINE_S
        while self.read != self.sent:
            assert time.monotonic() < deadline, (self.read, self.sent)
            for record in self._consumer.consume(500, 0.5):
                if record.error() is None:
                    word, count = (record.key() or b"").decode(), int(record.value() or b"0")
                    assert count <= self.sent[word], f"{word} was counted twice"
                    self.read[word] = count

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def jars() -> str:
    try:
        return streams_jars()
    except PeerUnavailable as error:
        pytest.skip(str(error))


def configure(admin: AdminClient, **values: str) -> None:
    """Set configs of the group, which there need not be yet."""
    entries = [
        ConfigEntry(f"streams.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(DEADLINE_S)


def group_command(cluster: Cluster, *words: str) -> Any:
    """What `tidegate group` prints as JSON."""
    places = ["--admin", f"http://127.0.0.1:{cluster.brokers[0].admin_port}"]
    if words[0] == "list":
        places += ["--bootstrap", cluster.bootstrap]
    done = CliRunner().invoke(command_line, ["group", *words, "-o", "json", *places])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_word_count_survives_changes_of_members_and_a_killed_broker(jars: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3, settings={}))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for made in admin.create_topics([NewTopic(LINES, 4), NewTopic(COUNTS, 2)]).values():
            made.result(DEADLINE_S)
        configure(admin, heartbeat_interval_ms="500", num_standby_replicas="1")
        words = Words(cluster)
        stack.callback(words.close)
        words.produce(200)

        first = stack.enter_context(running(jars, cluster, tmp_path / "first", "exactly_once_v2"))
        wait_until(lambda: first.tasks() == (TASKS, set()), first.tasks)
        words.wait_counted()
        wait_until(
            lambda: answered_from_snapshots(cluster) > 0, lambda: "each heartbeat of an idle member needs a script"
        )
        topics = admin.list_topics(timeout=DEADLINE_S).topics
        internal = {name: len(topic.partitions) for name, topic in topics.items() if name.startswith(GROUP)}
        assert internal == {f"{GROUP}-words-repartition": 4, CHANGELOG: 4}
        (row,) = [one for one in group_command(cluster, "list") if one["group"] == GROUP]
        assert (row["type"], row["members"]) == ("streams", 2)
        owned = [one["owned"] for one in group_command(cluster, "members", GROUP)]
        assert sorted(index for one in owned for index in one[LINES]) == [0, 1, 2, 3]

        second = stack.enter_context(running(jars, cluster, tmp_path / "second", "exactly_once_v2"))
        wait_until(lambda: are_shared(first.tasks(), second.tasks()), lambda: (first.tasks(), second.tasks()))
        words.produce(200)
        cluster.brokers[1].kill()
        words.produce(200)
        words.wait_counted()
        cluster.brokers[1].start()

        first.close()
        wait_until(lambda: second.tasks() == (TASKS, set()), second.tasks)
        words.produce(200)
        words.wait_counted()
        second.close()
        wait_until(lambda: is_empty(cluster), lambda: group_command(cluster, "list"))

        before = sizes(admin, CHANGELOG)
        compact(cluster, CHANGELOG)  # waits until it is done
        third = stack.enter_context(running(jars, cluster, tmp_path / "third", "exactly_once_v2"))
        wait_until(lambda: third.tasks() == (TASKS, set()), third.tasks)
        words.produce(200)
        words.wait_counted()
        third.close()
        assert sizes(admin, CHANGELOG) > before


def is_empty(cluster: Cluster) -> bool:
    return [one["state"] for one in group_command(cluster, "list") if one["group"] == GROUP] == ["Empty"]


def compact(cluster: Cluster, topic: str) -> None:
    """Compact every partition of a topic as far as it goes; a broker may have done so by itself before."""
    words = ["topic", "compact", topic, "-o", "json", "--redis-url", cluster.redis_url]
    done = CliRunner().invoke(command_line, words)
    assert done.exit_code == 0, done.output
    assert all(row["offset"] for row in json.loads(done.stdout)), done.output


def sizes(admin: AdminClient, topic: str) -> list[int]:
    """The ends of its partitions; asked again while a broker cannot reach Redis, as on a busy machine."""
    asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(4)}
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return [found.result(DEADLINE_S).offset for found in admin.list_offsets(asked).values()]
        except KafkaException as error:
            if error.args[0].code() != KafkaError.LEADER_NOT_AVAILABLE or time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def answered_from_snapshots(cluster: Cluster) -> float:
    """Heartbeats that brokers answered so."""
    urls = [f"http://127.0.0.1:{broker.admin_port}/metrics" for broker in cluster.brokers]
    name = "tidegate_heartbeats_answered_from_snapshots_total", ()
    return sum(Scrape.from_url(url).samples.get(name, 0) for url in urls)


def are_shared(first: tuple[set[str], set[str]], second: tuple[set[str], set[str]]) -> bool:
    """Whether two processes have half of the tasks each, and standbys of those of the other that have state."""
    stateful = {task for task in TASKS if task.startswith("1_")}
    return (
        first[0] | second[0] == TASKS
        and not first[0] & second[0]
        and len(first[0]) == len(second[0])
        and first[1] == second[0] & stateful
        and second[1] == first[0] & stateful
    )
