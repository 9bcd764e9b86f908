"""Readers without members that commit: judged by when their offsets last advanced, as lag samples show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from kio.schema.errors import ErrorCode

from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.diagnosis import commit_progress
from tidegate.diagnosis.explain import GroupFinding, GroupSeverity
from tidegate.http import group_views
from tidegate.monitoring.lag_reading import LogEndsReading
from tidegate.monitoring.lag_sampler import sample_text
from tidegate.settings import Settings
from tidegate.store.store import Store

REF = "default/orders"
MINUTE_MS = 60_000


@pytest.fixture
async def broker(store: Store, settings: Settings) -> AsyncIterator[WholeBroker]:
    """A broker with topic t, 10 records in each of its partitions."""
    opened = await WholeBroker(settings).start()
    await opened.create("t", 2)
    for index in (0, 1):
        await opened.client("producer").produce("t", 10, index=index)
    yield opened
    await opened.close()


@pytest.fixture
def reader(broker: WholeBroker) -> ClientOf:
    """A Flink job: it commits and is no member."""
    return broker.client("flink")


async def sample(
    store: Store, age_ms: int, offsets: Mapping[int, int], *, end: int = 10, ref: str = REF, member: str = ""
) -> None:
    """What the sampler wrote so long ago: the partitions of t with their committed offsets and a log end."""
    time_ms = store.clock.now_ms() - age_ms
    fields = ["time", str(time_ms), "group", ref]
    for index, offset in offsets.items():
        times = {offset: time_ms}
        ends = LogEndsReading(log_start=0, log_end=end, head_time=time_ms, times=times, size=1, now_ms=time_ms)
        fields += [f"t:{index}", sample_text(offset, time_ms, ends, end - offset, member)]
    await store.command("XADD", store.cluster_keys.lag, f"{time_ms}-*", *fields)


async def commit(reader: ClientOf, offsets: Mapping[int, int]) -> None:
    for index, offset in offsets.items():
        assert await reader.commit("t", offset, index=index) is ErrorCode.none


async def found(broker: WholeBroker) -> GroupFinding:
    """What `explain`, the list and the console report first."""
    view = await group_views.view(broker.context, "default", "orders")
    [of_page], _ = await group_views.view_page(broker.context, "default", "", 10)
    assert [one.kind for one in of_page.findings] == [one.kind for one in view.findings]
    return view.findings[0]


async def test_commits_of_the_same_offsets_are_trouble(broker: WholeBroker, reader: ClientOf) -> None:
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3, 1: 10})
    await commit(reader, {0: 3, 1: 10})

    finding = await found(broker)

    assert (finding.kind, finding.severity) == ("commits_stalled", GroupSeverity.TROUBLE)
    assert "did not advance for at least 10 min, while 7 records wait" in finding.sentence


async def test_commits_that_advanced_before_are_trouble_since_then(broker: WholeBroker, reader: ClientOf) -> None:
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: min(8 - minutes + 3, 3), 1: 10})
    await commit(reader, {0: 3, 1: 10})

    finding = await found(broker)

    assert finding.kind == "commits_stalled"
    assert "did not advance for 8 min, while 7 records wait" in finding.sentence


async def test_commits_of_which_one_partition_advances_are_no_trouble(broker: WholeBroker, reader: ClientOf) -> None:
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3, 1: 9 - minutes // 3})
    await commit(reader, {0: 3, 1: 9})

    finding = await found(broker)

    assert (finding.kind, finding.severity) == ("commits_without_members", GroupSeverity.NOTE)
    assert "not known" not in finding.sentence


async def test_commit_after_the_last_sample_is_an_advance(broker: WholeBroker, reader: ClientOf) -> None:
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3})
    await commit(reader, {0: 4})

    finding = await found(broker)

    assert finding.kind == "commits_without_members" and "not known" not in finding.sentence


async def test_commits_at_the_log_end_stall_only_once_records_wait(broker: WholeBroker, reader: ClientOf) -> None:
    """A reader of a quiet topic commits the same offset for hours."""
    for minutes in (10, 9, 8, 2, 1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3}, end=3 if minutes > 2 else 10)
    await commit(reader, {0: 3})
    finding = await found(broker)

    assert finding.kind == "commits_without_members" and "not known" not in finding.sentence


@pytest.mark.parametrize("ages_min", [(), (4, 3, 2, 1)])
async def test_commits_without_old_samples_are_judged_by_their_age(
    broker: WholeBroker, reader: ClientOf, ages_min: tuple[int, ...]
) -> None:
    await sample(broker.store, 10 * MINUTE_MS, {0: 3}, ref="default/other")
    for minutes in ages_min:
        await sample(broker.store, minutes * MINUTE_MS, {0: 3})
    await commit(reader, {0: 3})

    finding = await found(broker)

    assert (finding.kind, finding.severity) == ("commits_without_members", GroupSeverity.NOTE)
    assert "Whether they advance is not known" in finding.sentence


async def test_samples_of_members_before_do_not_count(broker: WholeBroker, reader: ClientOf) -> None:
    for minutes in range(10, 5, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3}, member="m-1")
    await sample(broker.store, MINUTE_MS, {0: 3})
    await commit(reader, {0: 3})

    assert (await found(broker)).kind == "commits_without_members"


async def test_samples_are_read_once(broker: WholeBroker, reader: ClientOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_progress, "FRESH_S", 0.0)
    parsed: list[bytes] = []
    monkeypatch.setattr(
        commit_progress, "_partition", lambda text, parse=commit_progress._partition: parsed.append(text) or parse(text)
    )
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3})
    await commit(reader, {0: 3})
    await found(broker)
    await sample(broker.store, 0, {0: 3})
    await found(broker)

    assert len(parsed) == 11


async def test_samples_are_not_read_for_groups_that_are_well(broker: WholeBroker, reader: ClientOf) -> None:
    await sample(broker.store, MINUTE_MS, {0: 10})
    await commit(reader, {0: 10})
    view = await group_views.view(broker.context, "default", "orders")

    assert view.findings == ()
    assert broker.context.commit_progress._groups == {}


async def test_groups_beyond_the_limit_are_judged_by_their_age(
    broker: WholeBroker, reader: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_progress, "PARTITIONS_MAX", 3)
    for minutes in range(10, 0, -1):
        await sample(broker.store, minutes * MINUTE_MS, {0: 3, 1: 3}, ref="default/other")
        await sample(broker.store, minutes * MINUTE_MS, {0: 3, 1: 3})
    await commit(reader, {0: 3, 1: 3})

    assert (await found(broker)).kind == "commits_without_members"
    assert sum(len(group.streaks) for group in broker.context.commit_progress._groups.values()) == 2
