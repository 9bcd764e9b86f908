"""Delayed heartbeats over a whole broker: which are delayed, and that their replies report a rebalance."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.kafka_wire import Wire
from bench.members import Group, Member
from tests.kit.forked_cluster import ForkedCluster

INTERVAL_S = 1.0
LEARN_HEARTBEATS = 5


@pytest.fixture(scope="module")
def broker() -> Iterator[Cluster]:
    """One broker of its own, whose metrics nobody else moves."""
    with ForkedCluster(1, {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}) as cluster:
        yield cluster


def released(cluster: Cluster) -> dict[str, int]:
    """How many holds ended so far, by reason."""
    url = f"http://127.0.0.1:{cluster.brokers[0].admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        sample.labels["reason"]: int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == "tidegate_heartbeat_delayed_seconds_count"
    }


async def more_join(cluster: Cluster, group_id: str, *, named: bool) -> None:
    """Three members heartbeat for a while, then two more join, one after the other."""
    endpoint = Endpoint(cluster.bootstrap, cluster.pids)
    group = Group(group_id, 3)
    members = []
    for _ in range(5):
        wire = await Wire.connect(endpoint.first)
        if named:
            await wire.hello()
        members.append(Member(group, wire, INTERVAL_S))
    for member in members[:3]:
        member.start()
    await group.wait_stable()
    await asyncio.sleep(LEARN_HEARTBEATS * INTERVAL_S)
    for size in (4, 5):
        group.resize(size)
        members[size - 1].start()
        await group.wait_stable()
        await asyncio.sleep(1.5 * INTERVAL_S)
    for member in members:
        await member.stop()


async def test_delayed_heartbeat_reports_a_rebalance(broker: Cluster) -> None:
    await more_join(broker, "named", named=True)
    observed = released(broker)
    assert observed.get("rebalance", 0) > 0
    assert observed.get("ended", 0) > 0


async def test_delayed_heartbeat_unknown_software_is_answered_at_once(broker: Cluster) -> None:
    before = released(broker)
    await more_join(broker, "unnamed", named=False)
    assert released(broker) == before
