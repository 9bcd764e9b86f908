"""`tidegate group ...` for KIP-848 groups and share groups, with librdkafka's consumers on three brokers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.conformance.test_share_asyncio import configure
from tests.conformance.test_share_consumers import DEADLINE_S, make_topic, poll, produce, share_consumers, values
from tidegate.command_line import command_line

RECORDS = 40


class Shell:
    """`tidegate group` against a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def type(self, *words: str, code: int = 0) -> str:
        """Run `tidegate group WORDS`; what it prints."""
        places = ["--bootstrap", self._cluster.bootstrap]
        admin = ["--admin", f"http://127.0.0.1:{self._cluster.brokers[0].admin_port}"]
        if words[0] in ("show", "members", "history", "explain"):
            places = admin
        elif words[0] in ("list", "lag"):
            places += admin
        done = CliRunner().invoke(command_line, ["group", *words, *places])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.type(*words, "-o", "json", code=code))

    def row(self, group: str) -> dict[str, Any]:
        """The group in `group list`."""
        (found,) = (one for one in self.json("list") if one["group"] == group)
        return dict(found)


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster)


@contextmanager
def consuming(cluster: Cluster, topic: str, group: str) -> Iterator[Consumer]:
    """A member with group.protocol=consumer that has read and committed everything."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "billing-1"}
    consumer = Consumer({**config, "group.protocol": "consumer", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    until(lambda: len(read) >= RECORDS, lambda: read.extend(consumer.consume(RECORDS, 0.5)), read := [])
    consumer.commit(asynchronous=False)
    yield consumer
    consumer.close()


def until(done: Callable[[], bool], step: Callable[[], None], read: list[Any]) -> None:
    """Repeat a step until something holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, read
        step()


def test_every_command_knows_kip_848_groups(cluster: Cluster, shell: Shell, tmp_path: Any) -> None:
    topic, group = make_topic(cluster, 2), f"g-{uuid.uuid4().hex[:8]}"
    produce(cluster, topic, range(RECORDS), 2)
    with consuming(cluster, topic, group):
        row = shell.row(group)
        assert (row["state"], row["type"], row["members"], row["lag"]) == ("Stable", "consumer", 1, 0)
        (member,) = shell.json("members", group)
        assert (member["client_id"], member["phase"], member["owned"]) == ("billing-1", "synced", {topic: [0, 1]})
        assert member["target"] == member["owned"] and member["epoch"] == row["generation"]
        assert {one["partition"]: (one["committed"], one["owner"]) for one in shell.json("lag", group)} == {
            0: (RECORDS // 2, member["member_id"]), 1: (RECORDS // 2, member["member_id"]),
        }  # fmt: skip
        assert "group epoch" in shell.type("show", group)
        assert f"Group {group} is Stable" in shell.type("explain", group)
        assert [one["outcome"] for one in shell.json("history", group)] == ["stable"]
        assert "refused" in shell.type("reset", group, "--all-topics", "--to-earliest", "--execute", "--yes", code=1)
        assert "is not empty" in shell.type("delete", group, "--yes", code=2)
        assert "removed" in shell.type("evict", group, member["member_id"], "--yes")
    undo = str(tmp_path / "undo.csv")
    shell.type("reset", group, "--all-topics", "--to-earliest", "--execute", "--yes", "--undo", undo)
    assert shell.row(group)["lag"] == RECORDS
    assert "deleted" in shell.type("delete", group, "--yes")


def test_every_command_knows_share_groups(cluster: Cluster, shell: Shell, tmp_path: Any) -> None:
    topic, group = make_topic(cluster, 2), f"s-{uuid.uuid4().hex[:8]}"
    configure(cluster, group, share_record_lock_duration_ms="60000")  # the records stay acquired over all commands
    with share_consumers(cluster, topic, 1, **{"group.id": group}) as (consumer,):
        assert (shell.row(group)["type"], shell.row(group)["members"]) == ("share", 1)
        produce(cluster, topic, range(RECORDS), 2)
        read: list[int] = []
        until(lambda: len(read) >= 1, lambda: read.extend(one for one in values(poll(consumer)) if one >= 0), read)

        row = shell.row(group)
        assert (row["state"], row["members"]) == ("Stable", 1) and row["lag"] >= RECORDS
        (member,) = shell.json("members", group)
        assert member["owned"] == {topic: [0, 1]} and member["in_flight"] >= len(read)
        assert {one["partition"] for one in shell.json("lag", group)} == {0, 1}
        assert "acquired" in shell.type("show", group)
        assert "acquired by 1 member" in shell.type("explain", group)
        assert shell.json("history", group)[0]["outcome"] == "stable"
        assert "refused" in shell.type("reset", group, "--all-topics", "--to-latest", "--execute", "--yes", code=1)
        assert "cannot be removed" in shell.type("evict", group, member["member_id"], "--yes", code=2)
        assert "not empty" in shell.type("delete", group, "--yes", code=2)
    undo = tmp_path / "undo.csv"
    shell.type("reset", group, "--all-topics", "--to-latest", "--execute", "--yes", "--undo", str(undo))
    assert shell.row(group)["lag"] == 0
    shell.type("reset", group, "--from-file", str(undo), "--execute", "--yes", "--undo", str(tmp_path / "2.csv"))
    assert shell.row(group)["lag"] == row["lag"]
    assert "deleted" in shell.type("delete", group, "--yes")
    assert group not in {one["group"] for one in shell.json("list")}
