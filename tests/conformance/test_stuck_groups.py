"""Each kind of trouble, made on real brokers, is named by what explains it: over the admin HTTP of another broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from bench import stuck
from bench.cluster import CONNECTIONS_STAY
from bench.stuck import SCENARIOS, Scenario, Stage
from tests.kit.forked_cluster import ForkedCluster

pytestmark = pytest.mark.timeout(300)  # most of it goes into making the trouble


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers() -> AsyncIterator[dict[Scenario, dict[str, Any]]]:
    """All the trouble at once, for it takes its time; what is said of each group, with its list entry."""
    with ForkedCluster(brokers=2, settings=stuck.SETTINGS, constants=CONNECTIONS_STAY) as cluster:
        async with Stage(cluster) as stage, aiohttp.ClientSession(stage.admin) as http:
            groups = await asyncio.gather(*(scenario(stage) for scenario in SCENARIOS))
            found = {}
            for scenario, group_id in zip(SCENARIOS, groups, strict=True):
                async with http.get(f"/api/v1/groups/{group_id}/explain") as answer:
                    found[scenario] = await answer.json()
            async with http.get("/api/v1/groups") as answer:
                for row in (await answer.json())["groups"]:
                    reported = next(one for one in found.values() if one["group"] == row["group"])
                    reported["listed"] = row
            yield found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.asyncio(loop_scope="module")
async def test_trouble_is_named(scenario: Scenario, answers: dict[Scenario, dict[str, Any]]) -> None:
    reported = answers[scenario]
    findings = {finding["kind"]: finding for finding in reported["findings"]}

    assert SCENARIOS[scenario] in findings, reported
    assert findings[SCENARIOS[scenario]]["sentence"]
    assert findings["last_rebalance"]["sentence"]


@pytest.mark.asyncio(loop_scope="module")
async def test_lists_name_the_worst_of_each(answers: dict[Scenario, dict[str, Any]]) -> None:
    worst = {reported["group"]: reported["listed"]["severity"] for reported in answers.values()}

    assert worst["silent-member"] == worst["hanging-leader"] == "stuck"
    assert worst["crash-loop"] == worst["no-commits"] == "trouble"
    assert worst["too-many-members"] == worst["nobody-left"] == ""


@pytest.mark.asyncio(loop_scope="module")
async def test_explain_names_the_responsible_member_alone(answers: dict[Scenario, dict[str, Any]]) -> None:
    def of(scenario: Scenario) -> str:
        return next(one["sentence"] for one in answers[scenario]["findings"] if one["kind"] == SCENARIOS[scenario])

    assert "web-3 at 127.0.0.1" in of(stuck.silent_member) and "web-1" not in of(stuck.silent_member)
    assert "etl-3" in of(stuck.busy_member) and "etl-1" not in of(stuck.busy_member)
    assert "pod-c" in of(stuck.crash_loop) and "pod-a" not in of(stuck.crash_loop)
    assert "pod-b" in of(stuck.failing_member) and "pod-a" not in of(stuck.failing_member)
    assert "shard-1" in of(stuck.same_instance) and "shard-0" not in of(stuck.same_instance)
    assert "etl-2" in of(stuck.no_commits) and "etl-1" not in of(stuck.no_commits)
