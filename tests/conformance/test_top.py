"""`tidegate top` in a terminal of 80 by 24, on a live cluster with a rebalance that waits for somebody."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static
from textual.widgets.data_table import RowKey
from typer.testing import CliRunner

from bench.cluster import Cluster
from tidegate.cli.client import group_requests
from tidegate.cli.client.kafka_wire import Connection
from tidegate.cli.failures import FAILED
from tidegate.cli.places import AdminHttp
from tidegate.cli.top.app import Top
from tidegate.command_line import command_line
from tidegate.protocol.api_keys import ApiKey

SCREEN = (80, 24)


@dataclass(frozen=True)
class Groups:
    """One that is far behind, one that waits for a member."""

    behind: str
    waiting: str


@pytest.fixture
async def groups(cluster: Cluster) -> AsyncIterator[Groups]:
    mark = uuid.uuid4().hex[:5]  # short: it is typed
    topic, behind, waiting = f"top-{mark}", f"{mark}b", f"{mark}w"
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(12):
            await producer.send(topic, b"x", partition=0)
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=behind, enable_auto_commit=False)
    async with consumer:
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.commit({TopicPartition(topic, 0): 2})
    members = [Connection(cluster.brokers[0].address, f"worker-{number}") for number in range(2)]
    joins = []
    asked = SimpleNamespace(group_id=waiting, protocol_data="", protocol_type="consumer")
    for member in members:  # the first never comes back
        await member.open()
        patient = {"session_timeout": timedelta(seconds=90), "rebalance_timeout": timedelta(seconds=120)}
        joining = member.ask(ApiKey.JOIN_GROUP, **group_requests.join(asked) | patient)
        joins.append(asyncio.create_task(joining))
        await joins[0]  # the second finds a group that has formed
    yield Groups(behind, waiting)
    for join in joins:
        join.cancel()
    await asyncio.gather(*joins, return_exceptions=True)
    for member in members:
        await member.close()


def text_of(pilot: Pilot[Any], name: str) -> str:
    return str(pilot.app.screen.query_one(name, Static).render())


def names(pilot: Pilot[Any]) -> list[str]:
    table: DataTable[Any] = pilot.app.screen_stack[0].query_one("#groups", DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


async def until(pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await pilot.pause(0.05)


async def test_groups_by_trouble_and_one_of_them_open(cluster: Cluster, groups: Groups) -> None:
    app = Top(AdminHttp(f"127.0.0.1:{cluster.brokers[1].admin_port}"), "default", 0.3)
    async with app.run_test(size=SCREEN) as pilot:
        await until(pilot, lambda: {groups.behind, groups.waiting} <= set(names(pilot)))
        assert "groups," in text_of(pilot, "#status")

        await pilot.press("slash", *groups.waiting)
        await until(pilot, lambda: names(pilot) == [groups.waiting])
        await pilot.press("enter")  # the filter stays, the table has the keys
        await pilot.press("enter")
        await until(pilot, lambda: "barrier ends in" in text_of(pilot, "#facts"))
        assert "waits for worker-0" in text_of(pilot, "#facts")
        members: DataTable[Any] = app.screen.query_one("#members", DataTable)
        await until(pilot, lambda: members.row_count == 2)
        assert [str(cell) for cell in members.get_row_at(0)][:3] == ["worker-0", "127.0.0.1", "missing"]

        await pilot.press("escape", "escape")
        await until(pilot, lambda: groups.behind in names(pilot))
        assert app.query_one("#filter", Input).value == ""
        await pilot.press("l")
        await until(pilot, lambda: "by lag" in text_of(pilot, "#status"))
        await pilot.press("slash", *groups.behind, "enter", "enter")
        partitions: DataTable[Any] = app.screen.query_one("#partitions", DataTable)
        await until(pilot, lambda: partitions.row_count == 1)
        assert [str(cell) for cell in partitions.get_row_at(0)][1:4] == ["2", "12", "10"]

        await pilot.press("q")
    assert app.return_code == 0


async def test_top_unavailable_cluster_is_reported_and_the_last_screen_stays(cluster: Cluster, groups: Groups) -> None:
    app = Top(AdminHttp(f"127.0.0.1:{cluster.brokers[1].admin_port}"), "default", 0.3)
    async with app.run_test(size=SCREEN) as pilot:
        await until(pilot, lambda: groups.behind in names(pilot))
        app._admin = AdminHttp("127.0.0.1:1")
        await until(pilot, lambda: "no admin HTTP answers" in text_of(pilot, "#status"))

        assert groups.behind in names(pilot)


async def test_top_list_that_arrives_while_it_closes_is_no_failure(cluster: Cluster, groups: Groups) -> None:
    app = Top(AdminHttp(f"127.0.0.1:{cluster.brokers[1].admin_port}"), "default", 60)
    async with app.run_test(size=SCREEN) as pilot:
        await until(pilot, lambda: groups.behind in names(pilot))
        table: DataTable[Any] = app.screen.query_one("#groups", DataTable)
        await table.remove()
        app.post_message(DataTable.RowHighlighted(table, 0, RowKey()))
        app._observe()
        await app.workers.wait_for_complete()
        await pilot.pause(0.2)
    assert app.return_code is None  # 1 after a failure


async def test_top_keys_of_the_list_do_nothing_while_a_group_is_open(cluster: Cluster, groups: Groups) -> None:
    app = Top(AdminHttp(f"127.0.0.1:{cluster.brokers[1].admin_port}"), "default", 0.3)
    async with app.run_test(size=SCREEN) as pilot:
        await until(pilot, lambda: groups.behind in names(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("slash", "l")
        await pilot.pause(0.5)
        assert len(app.screen_stack) == 2
        assert not app.screen_stack[0].query_one("#filter").has_class("open")
        await pilot.press("q")
    assert app.return_code == 0


def test_without_a_terminal() -> None:
    done = CliRunner().invoke(command_line, ["top"])

    assert done.exit_code == FAILED
    assert done.stderr.startswith("tidegate: top needs a terminal")
