"""Delayed heartbeats over a whole broker: which are delayed, and that their replies report a rebalance."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.kafka_wire import Wire
from bench.members import Group, Member
from tests.kit.forked_cluster import ForkedCluster

INTERVAL_S = 1.0
LEARN_HEARTBEATS = 5
WAIT_S = 90.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    """One broker of its own, whose metrics nobody else moves."""
    with ForkedCluster(1, {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}) as cluster:
        yield cluster


def released(cluster: Cluster) -> dict[str, int]:
    """How many holds ended so far, by reason."""
    url = f"http://127.0.0.1:{cluster.brokers[0].admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        sample.labels["reason"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "tidegate_heartbeat_delayed_seconds_count"
    }


async def more_join(cluster: Cluster, group_id: str, *, named: bool, enough: Callable[[], bool]) -> None:
    """Three members heartbeat for a while, then others join one after the other: two, and more until it is enough."""
    endpoint = Endpoint(cluster.bootstrap, cluster.pids)
    group = Group(group_id, 3)
    members: list[Member] = []

    async def start_one() -> None:
        wire = await Wire.connect(endpoint.first)
        if named:
            await wire.hello()
        members.append(Member(group, wire, INTERVAL_S))
        members[-1].start()

    for _ in range(3):
        await start_one()
    await group.wait_stable()
    await asyncio.sleep(LEARN_HEARTBEATS * INTERVAL_S)
    while len(members) < 5 or not enough():
        group.resize(len(members) + 1)
        await start_one()
        await group.wait_stable()
        await asyncio.sleep(1.5 * INTERVAL_S)
    for member in members:
        await member.stop()


async def test_delayed_heartbeat_reports_a_rebalance(broker: Cluster) -> None:
    """On a busy machine intervals are too irregular to delay an answer; members that join anew are measured anew."""
    deadline = time.monotonic() + WAIT_S

    def both_observed() -> bool:
        observed = released(broker)
        assert time.monotonic() < deadline, observed
        return observed.get("rebalance", 0) > 0 and observed.get("ended", 0) > 0

    await more_join(broker, "named", named=True, enough=both_observed)


async def test_delayed_heartbeat_unknown_software_is_answered_at_once(broker: Cluster) -> None:
    before = released(broker)
    await more_join(broker, "unnamed", named=False, enough=lambda: True)
    assert released(broker) == before
