"""OffsetFetch: what is answered where (scenarios 90 to 92), and that equal reads are shared."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.wire import request
from tests.scripts.test_offsets_commit import commit_request, label, name_of
from tests.support.handlers import Broker, FakeCatalog, given_group, topic
from tidegate.admissions import Admissions
from tidegate.apis import all_offsets, bounded_answers, fetched_offsets
from tidegate.errors import StoreUnavailable
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import Committed, Offsets, entry_json
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg, Link
from tidegate.store.store import Store

NONE, LOADING, NOT_COORDINATOR, INVALID_REQUEST, UNKNOWN_ID = 0, 14, 16, 42, 100
VERSIONS = range(1, 11)
T1, T2 = topic("t1", number=1), topic("t2", number=2)


def fetch_request(
    version: int,
    groups: dict[str, dict[str, list[int]] | None],
    require_stable: bool = False,
) -> Any:
    """OffsetFetch of group -> topic -> partitions, or None for all. Below version 8 of one group."""
    stable = {"require_stable": require_stable} if version >= 7 else {}
    named = [
        {"group_id": group_id, "topics": None if wanted is None else _topics(version, wanted)}
        for group_id, wanted in groups.items()
    ]
    if version < 8:
        (only,) = named
        return request(9, version, **only, **stable)
    return request(9, version, groups=named, **stable)


def _topics(version: int, wanted: dict[str, list[int]]) -> list[dict[str, Any]]:
    return [{**label(version, name), "partition_indexes": indexes} for name, indexes in wanted.items()]


Answer = tuple[int, dict[str, tuple[int, int, str, int]]]
"""The group's code (NONE where the version has none); field -> offset, leader epoch, metadata, code."""


def answers(version: int, response: Any) -> dict[str, Answer]:
    """Group -> answer; the group is "" below version 8."""
    groups = response.groups if version >= 8 else [response]
    return {
        getattr(group, "group_id", ""): (
            group.error_code.value if version >= 2 else NONE,
            {
                f"{name_of(one)}:{partition.partition_index}": (
                    partition.committed_offset,
                    partition.committed_leader_epoch if version >= 5 else -1,
                    partition.metadata,
                    partition.error_code.value,
                )
                for one in group.topics
                for partition in one.partitions
            },
        )
        for group in groups
    }


async def fetch(
    broker: Broker,
    wanted: dict[str, list[int]] | None,
    version: int = 9,
    require_stable: bool = False,
    group_id: str = "orders",
) -> Answer:
    """One group's answer."""
    response = await broker.ask(fetch_request(version, {group_id: wanted}, require_stable))
    (answer,) = answers(version, response).values()
    return answer


NOTHING = (-1, -1, "", NONE)


@pytest.mark.parametrize("version", VERSIONS)
async def test_scenario_90_nothing_committed_is_no_error(broker: Broker, keys: GroupKeys, version: int) -> None:
    assert await fetch(broker, {"t1": [0, 1], "nowhere": [7]}, version) == (
        NONE,
        {"t1:0": NOTHING, "t1:1": NOTHING, "nowhere:7": (-1, -1, "", UNKNOWN_ID) if version >= 10 else NOTHING},
    )
    assert await fetch(broker, {}, version) == (NONE, {})
    if version >= 2:
        assert await fetch(broker, None, version) == (NONE, {})
    assert await broker.store.command("EXISTS", keys.group) == 0

    await broker.ask(commit_request(9, topics={"t1": {1: (5, "m")}}))
    assert await fetch(broker, {"t1": [0, 1]}, version) == (NONE, {"t1:0": NOTHING, "t1:1": (5, -1, "m", NONE)})
    if version >= 2:
        assert await fetch(broker, None, version) == (NONE, {"t1:1": (5, -1, "m", NONE)})


async def test_scenario_91_each_group_of_a_batch_has_its_own_answer(broker: Broker, store: Store) -> None:
    await broker.ask(commit_request(9, group_id="there", topics={"t1": {0: (5, "")}, "t2": {3: (6, "")}}))
    await store.command("SET", store.group_keys("default", "broken").offsets, "not a hash")

    for version in (8, 9, 10):
        request = fetch_request(
            version, {"there": {"t1": [0]}, "absent": {"t1": [0]}, "broken": {"t1": [0]}, "": {"t1": [1]}}
        )
        assert answers(version, await broker.ask(request)) == {
            "there": (NONE, {"t1:0": (5, -1, "", NONE)}),
            "absent": (NONE, {"t1:0": NOTHING}),
            "broken": (NOT_COORDINATOR, {}),
            "": (NONE, {"t1:1": NOTHING}),
        }
        request = fetch_request(version, {"there": None})
        assert answers(version, await broker.ask(request))["there"] == (
            NONE,
            {"t1:0": (5, -1, "", NONE), "t2:3": (6, -1, "", NONE)},
        )


@pytest.mark.parametrize("version", VERSIONS)
async def test_scenario_91_a_store_that_is_away_shows_at_the_groups_place_and_below_v8_on_each_partition(
    broker: Broker, version: int
) -> None:
    await broker.lose_store()
    refused = (-1, -1, "", NOT_COORDINATOR)
    assert await fetch(broker, {"t1": [0, 1], "nowhere": [2]}, version) == (
        NONE if version == 1 else NOT_COORDINATOR,
        {"t1:0": refused, "t1:1": refused, "nowhere:2": refused} if version < 8 else {},
    )
    if version >= 2:
        assert await fetch(broker, None, version) == (NOT_COORDINATOR, {})


async def test_group_named_twice_is_answered_twice(broker: Broker) -> None:
    group = fetch_request(9, {"orders": {"t1": [0]}}).groups[0]
    response = await broker.ask(request(9, 9, groups=(group, group)))
    assert [one.group_id for one in response.groups] == ["orders", "orders"]
    assert (await broker.ask(request(9, 9, groups=()))).groups == ()


async def test_partition_named_twice_in_one_of_several_groups_is_answered_twice(broker: Broker) -> None:
    await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}}))

    response = await broker.ask(fetch_request(9, {"orders": {"t1": [0, 0]}, "other": {"t1": [1]}}))

    assert response.groups[0].error_code.value == NONE
    assert [one.committed_offset for one in response.groups[0].topics[0].partitions] == [5, 5]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_group_named_many_times_is_read_once(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(commit_request(9, topics={"t1": dict.fromkeys(range(4), (5, ""))}))
    entries = list[int]()
    monkeypatch.setattr(
        fetched_offsets,
        "_fetched_partition",
        lambda index, committed: entries.append(index) or (index, committed.offset, -1, "", NONE),
    )
    group = fetch_request(version, {"orders": None}).groups[0]

    response = await broker.ask(request(9, version, groups=(group,) * 500))

    assert entries == [0, 1, 2, 3]
    assert [len(one.topics[0].partitions) for one in response.groups] == [4] * 500


async def test_groups_beyond_the_bytes_of_an_answer_are_retriable(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {f"g{number}": {"t1": [0]} for number in range(4)}
    for group_id in named:
        await broker.ask(commit_request(9, group_id=group_id, topics={"t1": {0: (5, "x" * 1_000)}}))
    monkeypatch.setattr(bounded_answers, "ANSWER_BYTES_MAX", 2_500)

    response = await broker.ask(fetch_request(9, named))
    assert [one.error_code.value for one in response.groups] == [NONE, NONE, LOADING, LOADING]
    response = await broker.ask(request(9, 9, groups=fetch_request(9, named).groups[:1] * 4))
    assert [(one.error_code.value, len(one.topics)) for one in response.groups] == [(NONE, 1)] * 2 + [(LOADING, 0)] * 2


@pytest.mark.parametrize("version", [1, 7, 8, 10])
async def test_partition_named_many_times_is_refused(broker: Broker, version: int) -> None:
    """A request of 64 KiB would get 4 KiB of metadata 16,000 times."""
    await broker.ask(commit_request(9, topics={"t1": dict.fromkeys(range(2), (5, "x" * 1_000))}))

    code, found = await fetch(broker, {"t1": [0, 1] * 500}, version)
    assert (code, found["t1:1"][0]) == (NONE, 5)
    code, found = await fetch(broker, {"t1": [0, 1] * 500 + [1]}, version)
    assert INVALID_REQUEST in (code, *(one[3] for one in found.values()))
    assert "x" not in str(found)


async def test_many_partitions_are_answered_in_parts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.ask(commit_request(9, topics={"t1": dict.fromkeys(range(4), (5, ""))}))
    read = list[int]()
    fetch_values = broker.context.offsets.fetch

    def counted(keys: GroupKeys, fields: Any, on_read: Any) -> None:
        read.append(len(fields))
        fetch_values(keys, fields, on_read)

    monkeypatch.setattr(broker.context.offsets, "fetch", counted)
    code, found = await fetch(broker, {"t1": list(range(2_500))}, 8)
    assert (code, len(found), read) == (NONE, 2_500, [1_000, 1_000, 500])


async def test_offsets_of_groups_are_read_for_some_requests_at_a_time(broker: Broker) -> None:
    broker.context.offset_answers = Admissions(1)
    first = await broker.context.offset_answers.admit(1)
    asked = asyncio.create_task(broker.ask(fetch_request(9, {"a": {"t1": [0]}, "b": {"t1": [0]}})))
    await broker.store.command("PING")
    await broker.store.command("PING")
    assert not asked.done()
    first.end()
    assert len((await asked).groups) == 2
    assert broker.context.offset_answers.held == 0


async def test_all_commits_of_a_group_are_answered_in_parts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.ask(commit_request(9, topics={"t2": {3: (1, ""), 1: (2, "")}, "t1": {2: (3, ""), 0: (4, "")}}))
    monkeypatch.setattr(all_offsets, "PARTITIONS", 3)
    parts = list[int]()
    resolve = fetched_offsets._FetchReply.fetched

    def fetched(reply: Any, place: int, answer: Any) -> None:
        parts.append(len(answer))
        resolve(reply, place, answer)

    monkeypatch.setattr(fetched_offsets._FetchReply, "fetched", fetched)
    response = await broker.ask(fetch_request(9, {"orders": None}))

    assert parts == [3, 1]
    assert [(topic.name, [one.partition_index for one in topic.partitions]) for topic in response.groups[0].topics] == [
        ("t1", [0, 2]),
        ("t2", [1, 3]),
    ]


@pytest.mark.parametrize("version", [7, 8, 9, 10])
async def test_scenario_92_require_stable_reads_the_offsets_alone(
    broker: Broker, keys: GroupKeys, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction can hold an offset, so one command reads all that there is to know."""
    await broker.ask(commit_request(9, topics={"t1": {0: (5, "old")}}))
    sent: list[Any] = []
    send = Link.send

    def noted(link: Link, args: Any, *more: Any) -> None:
        sent.append(args[:2])
        send(link, args, *more)

    monkeypatch.setattr(Link, "send", noted)
    answer = await fetch(broker, {"t1": [0, 1]}, version, require_stable=True)

    assert answer == (NONE, {"t1:0": (5, -1, "old", NONE), "t1:1": NOTHING})
    assert [one for one in sent if keys.group in str(one[1])] == [["HMGET", keys.offsets]]


async def test_fetch_extends_no_session(broker: Broker, keys: GroupKeys) -> None:
    await given_group(broker.store, keys, deadline=9_000_000_000_000)
    await fetch(broker, {"t1": [0]})
    assert int(await broker.store.command("ZSCORE", keys.sessions, "m-1")) == 9_000_000_000_000


# -- topics made again


async def test_commit_of_a_topic_that_was_made_again_is_none(broker: Broker) -> None:
    await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}, "t2": {0: (6, "")}}))
    broker.catalog.stored["t1"] = topic("t1", number=77)
    broker.catalog.known["t1"] = topic("t1", number=77)

    assert await fetch(broker, {"t1": [0], "t2": [0]}) == (NONE, {"t1:0": NOTHING, "t2:0": (6, -1, "", NONE)})
    assert await fetch(broker, None) == (NONE, {"t2:0": (6, -1, "", NONE)})


async def test_offset_fetch_residue_of_the_old_topic_hides_no_commit_of_the_new_one(broker: Broker) -> None:
    await broker.ask(commit_request(9, topics={"t1": {0: (5, ""), 1: (6, "")}}))
    broker.catalog.stored["t1"] = broker.catalog.known["t1"] = topic("t1", number=77)
    await broker.ask(commit_request(9, topics={"t1": {1: (7, "")}}))

    assert await fetch(broker, {"t1": [0, 1]}) == (NONE, {"t1:0": NOTHING, "t1:1": (7, -1, "", NONE)})
    assert await fetch(broker, None) == (NONE, {"t1:1": (7, -1, "", NONE)})


async def test_offset_fetch_commit_of_a_newer_topic_counts_after_a_refresh(broker: Broker, settings: Settings) -> None:
    """Another broker saw the topic made again and took a commit for it; here the old id is still in the cache."""
    store = Store(settings)
    await store.start()
    try:
        other = Broker(store, FakeCatalog(topic("t1", number=77), T2, topic("t3", number=3)))
        await other.ask(commit_request(9, topics={"t1": {0: (5, "")}, "t3": {0: (7, "")}}))
        broker.catalog.stored = dict(other.catalog.stored)
        broker.catalog.observations = 0

        assert (await fetch(broker, {"t1": [0], "t3": [0]}))[1] == {
            "t1:0": (5, -1, "", NONE),
            "t3:0": (7, -1, "", NONE),
        }
        assert (await fetch(broker, {"t1": [0]}))[1] == {"t1:0": (5, -1, "", NONE)}
        assert broker.catalog.observations == 1
    finally:
        await store.close()


async def test_offset_fetch_catalog_that_cannot_refresh_is_retriable(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}}))
    broker.catalog.known["t1"] = topic("t1", number=77)

    async def refuse() -> None:
        raise StoreUnavailable

    monkeypatch.setattr(broker.catalog, "refresh", refuse)
    assert await fetch(broker, {"t1": [0]}) == (NOT_COORDINATOR, {})


# -- the tick


class Listening:
    """Counts the commands of a store by name."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        send = store.metadata_node.control.send

        def counted(args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
            names: list[Arg] = list(args)
            self.sent.append(str(names[0]))
            send(args, on_reply, timeout_ms)

        monkeypatch.setattr(store.metadata_node.control, "send", counted)


@pytest.mark.one_server
async def test_equal_reads_of_a_tick_are_one_command(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.ask(commit_request(9, topics={"t1": {0: (5, "")}}))
    listening = Listening(broker.store, monkeypatch)

    found = await asyncio.gather(*(fetch(broker, {"t1": [0]}) for _ in range(20)), fetch(broker, {"t1": [0, 1]}))
    assert [one["t1:0"][0] for _, one in found] == [5] * 21
    assert listening.sent == ["HMGET", "HMGET"]

    await fetch(broker, {"t1": [0]})
    assert listening.sent == ["HMGET"] * 3


async def test_offset_fetch_returns_commits_queued_before_it_in_the_same_tick(
    store: Store, settings: Settings, keys: GroupKeys
) -> None:
    offsets, observed = Offsets(store), asyncio.Queue[Any]()

    def commit(offset: int) -> None:
        entries = ["t1:0", entry_json(offset, -1, T1.topic_hex, "")]
        offsets.commit(keys, Commit(-1, "", None, entries), lambda code: None)

    for offset in (1, 2, 3):
        commit(offset)
        offsets.fetch(keys, ["t1:0"], observed.put_nowait)
    offsets.fetch(keys, ["t1:0"], observed.put_nowait)

    found = [await asyncio.wait_for(observed.get(), 30) for _ in range(4)]
    assert [one["t1:0"].offset for one in found] == [1, 2, 3, 3]
    assert found[0]["t1:0"] == Committed(1, -1, "", T1.topic_hex)
