"""Streams groups over a socket: the scenarios of KIP-1071."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_heartbeat.v0 import request as sent

from tests.support.consumer_wire import Wire, code, wire_of
from tests.support.valkey import ValkeyServer
from tidegate.apis.streams_groups import SUBTOPOLOGIES_MAX
from tidegate.groups import configs, decision_queue
from tidegate.groups.streams import coordinator

HEARTBEAT, DESCRIBE, CONSUMER_DESCRIBE, SHARE_DESCRIBE = 88, 89, 69, 77
NOT_JOINED: dict[str, Any] = {"active_tasks": None, "standby_tasks": None, "warmup_tasks": None}
OWNS_NOTHING: dict[str, Any] = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": ()}


class Streams:
    """Heartbeats of a streams group that reads t4."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    async def heartbeat(self, member: str, epoch: int, version: int = 1, **fields: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": self.wire.group,
            "member_id": member,
            "member_epoch": epoch,
            "endpoint_information_epoch": -1,
            "client_tags": None,
            "task_offsets": None,
            "task_end_offsets": None,
            **NOT_JOINED,
            **fields,
        }
        timeout = timedelta(milliseconds=values.pop("rebalance_timeout_ms", -1))
        return await self.wire.ask(HEARTBEAT, version, rebalance_timeout=timeout, **values)

    async def join(self, member: str, topology: Any = None, **fields: Any) -> Any:
        values = {
            "topology": topology or topology_of(subtopology()),
            "process_id": f"process-{member}",
            "rebalance_timeout_ms": 60_000,
            **OWNS_NOTHING,
            **fields,
        }
        return await self.heartbeat(member, 0, **values)

    async def own(self, member: str, epoch: int, *indexes: int) -> Any:
        return await self.heartbeat(member, epoch, **{**OWNS_NOTHING, "active_tasks": tasks(*indexes)})

    async def describe(self, version: int = 1, **fields: Any) -> Any:
        values = {"group_ids": (self.wire.group,), "include_authorized_operations": False, **fields}
        return (await self.wire.ask(DESCRIBE, version, **values)).groups[0]

    async def changed(self, member: str, epoch: int) -> Any:
        """Heartbeat until the answer has tasks: the change of another member arrives a moment after its answer."""
        async with asyncio.timeout(40):
            while (answer := await self.heartbeat(member, epoch)).active_tasks is None:
                await asyncio.sleep(0.01)
        return answer

    async def configure(self, **values: str) -> None:
        stored = {f"streams.{name.replace('_', '.')}": value for name, value in values.items()}
        keys = self.wire.app.broker.store.group_keys("default", self.wire.group)
        await configs.alter(self.wire.app.broker.store, keys, stored, ())


def tasks(*indexes: int) -> Any:
    return (sent.TaskIds(subtopology_id="0", partitions=indexes),) if indexes else ()


def topic(name: str, partitions: int = 0, **configs: str) -> Any:
    pairs = tuple(sent.KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items())
    return sent.TopicInfo(name=name, partitions=partitions, replication_factor=1, topic_configs=pairs)


def subtopology(name: str = "0", sources: tuple[str, ...] = ("t4",), **fields: Any) -> Any:
    values = {
        "state_changelog_topics": (),
        "repartition_source_topics": (),
        "copartition_groups": (),
        **fields,
    }
    return sent.Subtopology(subtopology_id=name, source_topics=sources, **values)


def topology_of(*subtopologies: Any, epoch: int = 0) -> Any:
    return sent.Topology(epoch=epoch, subtopologies=subtopologies)


def active(answer: Any) -> list[int] | None:
    """Active tasks of the subtopology 0; None if the answer has no news."""
    if answer.active_tasks is None:
        return None
    return sorted(index for one in answer.active_tasks for index in one.partitions if one.subtopology_id == "0")


def statuses(answer: Any) -> list[int]:
    return [one.status_code for one in answer.status]


@pytest.fixture
async def streams(valkey: ValkeyServer) -> AsyncIterator[Streams]:
    async with wire_of(valkey) as wire:
        yield Streams(wire)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": " "},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": " "},
        {"rebalance_timeout_ms": -1},
        {"topology": None, "member_epoch": 0},
        {"active_tasks": None},
        {"standby_tasks": tasks(1)},
        {"topology": topology_of(subtopology(source_topic_regex=("t.*",)))},
    ],
)
async def test_scenario_1_invalid_join(streams: Streams, fields: dict[str, Any]) -> None:
    values = {"topology": topology_of(subtopology()), "rebalance_timeout_ms": 1_000, **OWNS_NOTHING, **fields}
    member = values.pop("member_id", "a")
    values.pop("member_epoch", None)

    assert code(await streams.heartbeat(member, 0, **values)) == "INVALID_REQUEST"


async def test_scenario_2_invalid_heartbeats(streams: Streams) -> None:
    await streams.join("a")

    assert code(await streams.heartbeat("a", 2, active_tasks=())) == "INVALID_REQUEST"
    assert code(await streams.heartbeat("a", 2, topology=topology_of(subtopology()))) == "INVALID_REQUEST"
    assert code(await streams.heartbeat("a", -3)) == "INVALID_REQUEST"
    assert code(await streams.heartbeat("a", -2)) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "invalid",
    [
        subtopology(state_changelog_topics=(topic("app-x-changelog", 3),)),
        subtopology(repartition_source_topics=(topic("app-r-repartition"),)),
        subtopology(sources=("__consumer_offsets",)),
        subtopology(sources=("no/topic",)),
    ],
)
async def test_scenario_9_invalid_topology_creates_no_group(streams: Streams, invalid: Any) -> None:
    assert code(await streams.join("a", topology_of(invalid))) == "STREAMS_INVALID_TOPOLOGY"
    assert code(await streams.describe()) == "GROUP_ID_NOT_FOUND"


async def test_topology_of_too_many_subtopologies_creates_no_group(streams: Streams) -> None:
    many = [subtopology(str(number), (f"t{number}",)) for number in range(SUBTOPOLOGIES_MAX + 1)]
    assert code(await streams.join("a", topology_of(*many))) == "INVALID_REQUEST"
    assert code(await streams.describe()) == "GROUP_ID_NOT_FOUND"
    assert code(await streams.join("a", topology_of(*many[:-1]))) == "NONE"


async def test_scenario_3_and_4_members_get_revoke_and_hand_over_tasks(streams: Streams) -> None:
    a = await streams.join("a")
    assert (a.member_epoch, active(a), a.standby_tasks, a.warmup_tasks, a.status) == (2, [0, 1, 2, 3], (), (), ())
    assert a.heartbeat_interval == timedelta(seconds=5)
    assert active(await streams.heartbeat("a", 2)) is None

    b = await streams.join("b")
    assert (b.member_epoch, active(b)) == (3, [])
    a = await streams.changed("a", 2)
    assert (a.member_epoch, active(a)) == (2, [0, 1])
    assert (await streams.own("a", 2, 0, 1)).member_epoch == 3
    assert active(await streams.own("b", 3)) == [2, 3]
    assert code(await streams.own("a", 2, 0, 1)) == "NONE"
    assert code(await streams.heartbeat("a", 4)) == "FENCED_MEMBER_EPOCH"
    assert code(await streams.heartbeat("c", 1)) == "UNKNOWN_MEMBER_ID"

    assert (await streams.heartbeat("b", -1)).member_epoch == -1
    assert (await streams.describe()).group_state == "Assigning"
    assert active(await streams.changed("a", 3)) == [0, 1, 2, 3]


async def test_scenario_5_and_6_session_and_revocation_time_out(streams: Streams) -> None:
    await streams.configure(session_timeout_ms="1000", heartbeat_interval_ms="300")
    await streams.join("a", rebalance_timeout_ms=500)
    joined = await streams.join("b")
    assert joined.heartbeat_interval == timedelta(milliseconds=300)
    await streams.heartbeat("a", 2)

    async with asyncio.timeout(40):
        while code(await streams.heartbeat("a", 2)) != "UNKNOWN_MEMBER_ID":
            await streams.heartbeat("b", joined.member_epoch)
            await asyncio.sleep(0.05)
        while (await streams.describe()).group_state != "Empty":
            await asyncio.sleep(0.05)


async def test_scenario_7_and_8_missing_source_and_internal_topics(streams: Streams) -> None:
    app = topology_of(
        subtopology("0", ("lines",), repartition_sink_topics=("app-words-repartition",)),
        subtopology(
            "1",
            (),
            repartition_source_topics=(
                topic("app-words-repartition", cleanup_policy="delete", retention_ms="-1", segment_bytes="52428800"),
            ),
            state_changelog_topics=(
                topic("app-counts-changelog", cleanup_policy="compact", message_timestamp_type="CreateTime"),
            ),
        ),
    )
    joined = await streams.join("a", app)
    assert (joined.member_epoch, active(joined), statuses(joined)) == (2, [], [1])
    assert (await streams.describe()).group_state == "NotReady"

    catalog = streams.wire.app.broker.catalog
    await catalog.create("default", "lines", 3)
    answer = await streams.heartbeat("a", 2)

    assert (answer.member_epoch, active(answer), statuses(answer)) == (3, [0, 1, 2], [])
    made = {name: catalog.get("default", name) for name in ("app-words-repartition", "app-counts-changelog")}
    assert {name: one.partition_count for name, one in made.items() if one is not None} == dict.fromkeys(made, 3)
    described = await streams.describe()
    assert (described.group_state, described.topology.subtopologies[1].state_changelog_topics[0].partitions) == (
        "Stable",
        3,
    )


async def test_scenario_8_refused_internal_topic_is_reported(streams: Streams) -> None:
    changelog = topic("app-x-changelog", cleanup_policy="nonsense")
    joined = await streams.join("a", topology_of(subtopology(state_changelog_topics=(changelog,))))

    assert (statuses(joined), active(joined)) == ([3], [])
    assert "app-x-changelog was not created" in joined.status[0].status_detail
    assert (await streams.describe()).group_state == "NotReady"


async def test_scenario_10_other_topologies(streams: Streams) -> None:
    await streams.join("a", topology_of(subtopology(), epoch=1))
    other = subtopology(sources=("t1",))

    assert code(await streams.join("b", topology_of(other, epoch=1))) == "INVALID_REQUEST"
    assert code(await streams.join("b", topology_of(other, epoch=2))) == "INVALID_REQUEST"
    stale = await streams.join("b", topology_of(other, epoch=0))
    assert (code(stale), active(stale), statuses(stale)) == ("NONE", [], [0])


async def test_scenario_11_shutdown_reaches_all_members(streams: Streams) -> None:
    await streams.join("a")
    joined = await streams.join("b")

    assert statuses(await streams.heartbeat("a", 2, shutdown_application=True)) == [4]
    assert statuses(await streams.heartbeat("b", joined.member_epoch)) == [4]


async def test_scenario_12_no_initial_delay(streams: Streams) -> None:
    """Kafka answers status 5 and no tasks for 3 s; here the first member has its tasks at once."""
    joined = await streams.join("a")

    assert (joined.member_epoch, active(joined), statuses(joined)) == (2, [0, 1, 2, 3], [])
    assert (await streams.describe()).group_state == "Stable"


async def test_scenario_16_descriptions_of_topologies_are_not_listed(streams: Streams) -> None:
    versions = await streams.wire.ask(18, 3, client_software_name="t", client_software_version="1")

    listed = {one.api_key: (one.min_version, one.max_version) for one in versions.api_keys}
    assert listed[HEARTBEAT] == listed[DESCRIBE] == (0, 1)
    assert 93 not in listed


async def test_scenario_13_standby_tasks_are_on_the_other_process(streams: Streams) -> None:
    await streams.configure(num_standby_replicas="1")
    app = topology_of(subtopology(state_changelog_topics=(topic("app-y-changelog", cleanup_policy="compact"),)))
    await streams.join("a", app)
    joined = await streams.join("b", app)
    await streams.heartbeat("a", 2)
    a = await streams.own("a", 2, 0, 1)
    b = await streams.own("b", joined.member_epoch)

    assert active(b) == [2, 3]
    assert [one.partitions for one in b.standby_tasks] == [(0, 1)]
    assert code(a) == "NONE"
    members = {one.member_id: one for one in (await streams.describe()).members}
    assert [one.partitions for one in members["a"].target_assignment.standby_tasks] == [(2, 3)]


async def test_scenario_14_commits_are_checked_by_member_epoch(streams: Streams) -> None:
    wire = streams.wire
    await streams.join("a")
    await streams.heartbeat("a", -1)
    epoch = (await streams.join("a")).member_epoch
    await streams.join("b")
    await streams.heartbeat("a", epoch)
    newer = (await streams.own("a", epoch, 0, 1)).member_epoch

    assert await wire.commit("a", newer, 7) == "NONE"
    assert await wire.commit("a", epoch, 8) == "NONE", "t4-0 was its own ever since"
    assert await wire.commit("a", epoch, 8, partition=3) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("a", newer + 1) == "STALE_MEMBER_EPOCH"
    assert await wire.commit("c", 1) == "UNKNOWN_MEMBER_ID"
    assert await wire.commit("a", newer, version=8) == "UNSUPPORTED_VERSION"
    assert await wire.fetch("a", newer) == 8
    assert await wire.fetch("a", newer + 1) == "STALE_MEMBER_EPOCH"


async def test_commit_after_session_timeout(streams: Streams) -> None:
    await streams.configure(session_timeout_ms="1000", heartbeat_interval_ms="300")
    epoch = (await streams.join("a")).member_epoch

    async with asyncio.timeout(40):
        while (answer := await streams.wire.commit("a", epoch)) == "NONE":
            await asyncio.sleep(0.05)
    assert answer == "UNKNOWN_MEMBER_ID"


async def test_scenario_15_group_has_one_type(streams: Streams) -> None:
    wire = streams.wire
    await streams.join("a")
    for is_empty in (False, True):
        if is_empty:
            await streams.heartbeat("a", -1)
        assert code(await wire.join("x", "t4")) == "GROUP_ID_NOT_FOUND"
        if not is_empty:
            member = await wire.member()
            assert (await member.join()).error_code is ErrorCode.inconsistent_group_protocol
        for key in (CONSUMER_DESCRIBE, SHARE_DESCRIBE):
            answer = await wire.ask(key, 1, group_ids=(wire.group,), include_authorized_operations=False)
            assert code(answer.groups[0]) == "GROUP_ID_NOT_FOUND"
    listed = (await wire.ask(16, 5, states_filter=(), types_filter=("Streams",))).groups
    assert [(one.group_id, one.group_type, one.protocol_type, one.group_state) for one in listed] == [
        (wire.group, "streams", "streams", "Empty")
    ]
    assert code(await wire.join("x", "t4")) == "GROUP_ID_NOT_FOUND"
    deleted = await wire.ask(42, 2, groups_names=(wire.group,))
    assert code(deleted.results[0]) == "NONE"
    assert code(await wire.join("x", "t4")) == "NONE"
    assert code(await streams.join("a")) == "GROUP_ID_NOT_FOUND"
    assert code(await streams.describe()) == "GROUP_ID_NOT_FOUND"


async def test_empty_group_changes_between_classic_and_streams(streams: Streams) -> None:
    wire = streams.wire
    assert await wire.commit("", -1, 5) == "NONE"

    joined = await streams.join("a")
    assert active(joined) == [0, 1, 2, 3]
    assert await wire.fetch(None, -1) == 5
    assert await wire.commit("a", joined.member_epoch, 6) == "NONE"
    await streams.heartbeat("a", -1)

    member = await wire.member()
    generation = (await member.join()).generation_id
    assert generation > joined.member_epoch
    assert code(await streams.join("a")) == "GROUP_ID_NOT_FOUND"
    assert code(await streams.heartbeat("a", 1)) == "GROUP_ID_NOT_FOUND"
    assert await wire.fetch(None, -1) == 6


async def test_delete_of_group_with_members(streams: Streams) -> None:
    await streams.join("a")

    assert code((await streams.wire.ask(42, 2, groups_names=(streams.wire.group,))).results[0]) == "NON_EMPTY_GROUP"


async def test_scenario_17_static_member_inherits_tasks(streams: Streams) -> None:
    await streams.join("a", instance_id="i")
    assert code(await streams.join("a", instance_id="i")) == "UNRELEASED_INSTANCE_ID"
    assert (await streams.heartbeat("a", -2, instance_id="i")).member_epoch == -2
    assert (await streams.describe()).group_state == "Reconciling"

    returned = await streams.join("b", instance_id="i")

    assert (returned.member_epoch, active(returned)) == (2, [0, 1, 2, 3])
    assert code(await streams.heartbeat("a", 2)) == "UNKNOWN_MEMBER_ID"


async def test_scenario_18_endpoints_of_processes(streams: Streams) -> None:
    joined = await streams.join("a", user_endpoint=sent.Endpoint(host="here", port=65_000))

    (one,) = joined.partitions_by_user_endpoint
    assert (one.user_endpoint.host, one.user_endpoint.port) == ("here", 65_000)
    assert [(found.topic, found.partitions) for found in one.active_partitions] == [("t4", (0, 1, 2, 3))]
    known = joined.endpoint_information_epoch
    assert (await streams.heartbeat("a", 2, endpoint_information_epoch=known)).partitions_by_user_endpoint is None


async def test_second_broker_serves_any_member(valkey: ValkeyServer, streams: Streams) -> None:
    wire = streams.wire
    async with wire_of(valkey, key_prefix=wire.app.broker.settings.key_prefix) as other:
        other.group = wire.group
        both = Streams(other), streams
        await both[0].join("a")
        b = (await both[1].join("b")).member_epoch
        assert active(await both[1].heartbeat("a", 2)) == [0, 1]
        assert (await both[0].own("a", 2, 0, 1)).member_epoch == 3
        assert active(await both[0].own("b", b)) == [2, 3]
        assert active(await both[1].heartbeat("b", b)) is None
        assert (await both[0].describe()).members == (await both[1].describe()).members


async def test_copartition_group_of_unknown_topic(streams: Streams) -> None:
    group = sent.CopartitionGroup(source_topics=(3,))

    answer = await streams.join("a", topology_of(subtopology(copartition_groups=(group,))))

    assert code(answer) == "INVALID_REQUEST"


async def test_large_group_is_decided_on_beside_the_event_loop(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def apply(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return decide_on(*args)

    decide_on = coordinator._apply
    monkeypatch.setattr(coordinator, "_apply", apply)
    monkeypatch.setattr(decision_queue, "INLINE_SIZE_MAX", 3)
    for member in ("a", "b", "c"):
        joined = await streams.join(member)
        assert joined.error_code is ErrorCode.none

    assert {one.member_id for one in (await streams.describe()).members} == {"a", "b", "c"}
    assert threads[0] is threading.main_thread()
    assert threads[-1] is not threading.main_thread()


async def test_versions_of_heartbeat_and_describe(streams: Streams) -> None:
    first = await streams.join("a", version=0)
    assert (first.acceptable_recovery_lag, active(first)) == (0, [0, 1, 2, 3])
    assert (await streams.heartbeat("b", 1, version=0)).acceptable_recovery_lag == 0
    second = await streams.heartbeat("a", first.member_epoch)
    assert (second.acceptable_recovery_lag, second.topology_description_required) == (10_000, False)
    assert second.task_offset_interval == first.task_offset_interval == timedelta(minutes=1)
    await streams.join("b")
    left = await streams.heartbeat("b", -1)
    assert (code(left), left.acceptable_recovery_lag) == ("NONE", -1)
    refused = await streams.heartbeat("b", 1)
    assert (code(refused), refused.acceptable_recovery_lag) == ("UNKNOWN_MEMBER_ID", -1)

    described = await streams.describe()
    assert (described.assignor_name, described.topology_description_status) == ("sticky", 0)
    asked = await streams.describe(include_topology_description=True)
    assert (asked.topology_description, asked.topology_description_status) == (None, 1)
    assert (await streams.describe(version=0)).members == described.members
    streams.wire.group = "nobody"
    missing = await streams.describe(include_topology_description=True)
    assert (code(missing), missing.assignor_name) == ("GROUP_ID_NOT_FOUND", None)


async def test_member_that_knows_no_endpoints_is_given_an_empty_list(streams: Streams) -> None:
    joined = await streams.join("a", endpoint_information_epoch=-1)

    assert joined.partitions_by_user_endpoint == ()
    for known, answered in ((-1, ()), (joined.endpoint_information_epoch, None)):
        plain = await streams.heartbeat("a", 2, endpoint_information_epoch=known)
        assert plain.partitions_by_user_endpoint == answered
        assert plain.task_offset_interval.total_seconds() == 60
