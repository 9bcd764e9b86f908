"""Groups shown as Redis consumer groups: what `redis-cli` shows of position and pending work, on a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.whole_broker import WholeBroker
from tidegate.apis.mirroring import forget_mirrors
from tidegate.groups.offsets import entry_json
from tidegate.groups.retention import sweep
from tidegate.log import mirror
from tidegate.log.mirror_news import PartitionNews
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store
from tidegate.topics.catalog import Topic


@dataclass(slots=True)
class Shown:
    """A mirror as redis-cli shows it: XINFO GROUPS, XINFO CONSUMERS, XPENDING."""

    store: Store
    keys: LogKeys
    group: str = "orders"

    async def position(self) -> str | None:
        """`last-delivered-id`; None where there is no mirror."""
        for group in await self.store.command("XINFO", "GROUPS", self.keys.log):
            found = _fields(group)
            if found["name"] == self.group.encode():
                return str(found["last-delivered-id"].decode())
        return None

    async def pending(self) -> list[tuple[str, str, int]]:
        """Entry, member and times delivered of all that is pending."""
        rows = await self.store.command("XPENDING", self.keys.log, self.group, "-", "+", 100_000)
        return [(row[0].decode(), row[1].decode(), row[3]) for row in rows]

    async def ids(self) -> list[str]:
        """The entries pending."""
        return [entry for entry, _, _ in await self.pending()]

    async def consumers(self) -> dict[str, int]:
        """Member -> how many entries are pending for it."""
        rows = [_fields(row) for row in await self.store.command("XINFO", "CONSUMERS", self.keys.log, self.group)]
        return {row["name"].decode(): row["pending"] for row in rows}


def _fields(reply: Any) -> dict[str, Any]:
    return {name.decode(): value for name, value in reply.items()}


@pytest.fixture
def pending_max() -> int:
    """Entries of a partition that a mirror shows as pending."""
    return mirror.PENDING_MAX


@pytest.fixture
async def brokers(
    store: Store, settings: Settings, pending_max: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[WholeBroker]]:
    monkeypatch.setattr(mirror, "PENDING_MAX", pending_max)
    own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    opened = [await WholeBroker(own, node_id).start() for node_id in (1, 2)]
    yield opened
    for broker in opened:
        await broker.close()


@pytest.fixture
def broker(brokers: list[WholeBroker]) -> WholeBroker:
    return brokers[0]


@pytest.fixture
async def topic(broker: WholeBroker) -> Topic:
    """Topic t: entries of 3, 2, 4 and 1 records, so bases 0, 3, 5, 9 and the end 10."""
    made = await broker.create("t", 2)
    await broker.client("producer").produce("t", 3, 2, 4, 1)
    return made


@pytest.fixture
def shown(store: Store, topic: Topic) -> Shown:
    return Shown(store, store.log_keys("default", "t", 0, topic.topic_hex))


ALL = ["0-1", "3-1", "5-1", "9-1"]


async def test_fetch_shows_position_and_pending_entries(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()

    assert await shown.position() == "9-1"
    assert await shown.pending() == [(entry, member.member_id, 1) for entry in ALL]


@pytest.mark.one_server
async def test_mirror_state_equals_that_of_xreadgroup(broker: WholeBroker, shown: Shown, store: Store) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    native = Shown(store, shown.keys, "native")
    await store.command("XGROUP", "CREATE", shown.keys.log, "native", "0")
    await store.command("XREADGROUP", "GROUP", "native", member.member_id, "STREAMS", shown.keys.log, ">")

    assert await shown.pending() == await native.pending()
    assert await shown.consumers() == await native.consumers()
    assert await shown.position() == await native.position()


async def test_fetch_in_the_middle_of_an_entry_hands_out_that_entry(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 6)
    await broker.mirrored()

    assert await shown.ids() == ["5-1", "9-1"]


async def test_first_fetch_makes_the_mirror_at_the_offset_asked_for(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    assert await shown.position() is None
    await member.fetch("t", 10)
    await broker.mirrored()

    assert await shown.position() == "10-0"
    assert await shown.consumers() == {member.member_id: 0}


async def test_first_commit_makes_the_mirror_too(broker: WholeBroker, shown: Shown) -> None:
    nobody = broker.client()
    for offset, position in ((7, "5-0"), (10, "10-0"), (0, "0-0"), (3, "3-0")):
        assert await nobody.commit("t", offset) is ErrorCode.none
        await broker.mirrored()
        assert await shown.position() == position


async def test_commit_answered_just_before_the_mirror_closes_is_shown(broker: WholeBroker, shown: Shown) -> None:
    assert await broker.client().commit("t", 7) is ErrorCode.none
    assert broker.context.mirror is not None
    await broker.context.mirror.close()

    assert await shown.position() == "5-0"


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, ALL), (2, ALL), (3, ALL[1:]), (4, ALL[1:]), (5, ALL[2:]), (8, ALL[2:]), (9, ALL[3:]), (10, [])],
)
async def test_commit_acknowledges_entries_that_end_at_or_below_it(
    broker: WholeBroker, shown: Shown, offset: int, left: list[str]
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    assert await member.commit("t", offset) is ErrorCode.none
    await broker.mirrored()

    assert await shown.ids() == left
    assert await shown.position() == "9-1"


async def test_fetch_and_commit_of_one_moment_leave_nothing_pending(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 10)
    await broker.mirrored()

    assert (await shown.position(), await shown.ids()) == ("9-1", [])


async def given_member_that_left(broker: WholeBroker, offset: int, **limits: int) -> None:
    """A member read from the start, up to the limits, and committed an offset."""
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0, **limits)
    await member.commit("t", offset)
    await broker.mirrored()
    await member.leave()


async def test_commits_without_members_move_the_position_of_an_empty_group(broker: WholeBroker, shown: Shown) -> None:
    reader = broker.client("flink")
    await given_member_that_left(broker, 3, partition_max_bytes=1)

    for offset, position in ((3, "0-1"), (5, "3-1"), (7, "5-0"), (10, "9-1")):
        assert await reader.commit("t", offset) is ErrorCode.none
        await broker.mirrored()
        assert await shown.position() == position


async def test_commit_without_members_moves_the_position_back(broker: WholeBroker, shown: Shown) -> None:
    reader = broker.client("flink")
    await given_member_that_left(broker, 10)

    for offset, position in ((10, "9-1"), (3, "3-0"), (7, "5-0"), (0, "0-0")):
        assert await reader.commit("t", offset) is ErrorCode.none
        await broker.mirrored()
        assert await shown.position() == position


async def test_commit_beyond_pending_entries_of_former_members_moves_the_position(
    broker: WholeBroker, shown: Shown
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0, partition_max_bytes=1)
    await broker.mirrored()
    await member.leave()
    assert await broker.client("admin").commit("t", 9) is ErrorCode.none  # a reset forward
    await broker.mirrored()

    assert (await shown.position(), await shown.ids()) == ("5-1", [])


async def test_commits_of_a_group_upgraded_to_epochs_move_its_position(broker: WholeBroker, shown: Shown) -> None:
    upgraded = broker.client("upgraded")
    await given_member_that_left(broker, 3, partition_max_bytes=1)
    joined = await upgraded.ask(
        request(
            68, 1, group_id="orders", member_id="upgraded", member_epoch=0, subscribed_topic_names=("t",),
            rebalance_timeout=60_000, topic_partitions=(),
        )
    )  # fmt: skip
    upgraded.member_id, upgraded.generation = "upgraded", joined.member_epoch
    await upgraded.fetch("t", 3)
    for offset, position in ((10, "9-1"), (3, "3-0"), (9, "9-0")):
        assert await upgraded.commit("t", offset, version=9) is ErrorCode.none
        await broker.mirrored()
        assert await shown.position() == position


async def test_commits_of_an_owner_that_reads_from_another_host_move_its_position(
    broker: WholeBroker, shown: Shown
) -> None:
    member, translated = broker.client(), broker.client(host="10.0.0.1")
    await member.own("t")
    for offset in (3, 10):
        await translated.fetch("t", 0)
        assert await member.commit("t", offset) is ErrorCode.none
        await broker.mirrored()

    assert await shown.position() == "9-1"


async def test_commit_behind_what_its_owner_has_read_leaves_the_position(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.commit("t", 9)
    await broker.mirrored()
    await member.fetch("t", 0)
    await broker.mirrored()
    assert await shown.ids() == ["9-1"]
    for offset in (3, 0, 5, 10):
        assert await member.commit("t", offset) is ErrorCode.none
        await broker.mirrored()
        assert await shown.position() == "9-1"


async def test_repeated_commit_leaves_the_position_of_a_seek(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 10)
    await broker.mirrored()
    await member.fetch("t", 0, partition_max_bytes=1)
    await broker.mirrored()
    await member.commit("t", 10)
    await broker.mirrored()

    assert await shown.position() == "0-1"


@pytest.mark.parametrize("record", ["?", "7", '{"member_id":7}'])
async def test_commit_beside_an_unreadable_owner_moves_the_position(
    broker: WholeBroker, shown: Shown, store: Store, record: str
) -> None:
    await store.command("HSET", shown.keys.owners, "orders", record)
    for offset in (3, 10):
        assert await broker.client().commit("t", offset) is ErrorCode.none
        await broker.mirrored()

    assert await shown.position() == "10-0"


async def test_commit_runs_equally_many_commands_with_many_groups(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    """XINFO GROUPS would reply with all of them."""
    member = broker.client()
    await member.own("t")
    await member.commit("t", 3)
    await broker.mirrored()
    for number in range(50):
        await store.command("XGROUP", "CREATE", shown.keys.log, f"other-{number}", "0")
    await store.command("CONFIG", "RESETSTAT")
    for offset in (3, 5, 5, 9):
        await member.commit("t", offset)
        await broker.mirrored()

    assert await shown.position() == "5-1"
    assert await calls_of(store, "xinfo|groups") == 1  # this test's
    assert await calls_of(store, "xrevrange") == 2  # one for each commit that moved


async def calls_of(store: Store, command: str) -> int:
    """Executions of a command since the last CONFIG RESETSTAT."""
    stats = await store.command("INFO", "commandstats")
    found = re.search(rf"cmdstat_{re.escape(command)}:calls=(\d+)", str(stats))
    return int(found[1]) if found else 0


@pytest.mark.parametrize("at_once", [False, True])
async def test_seeking_back_moves_the_position_back_and_what_is_committed_stays_so(
    broker: WholeBroker, shown: Shown, at_once: bool
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 10)
    if not at_once:
        await broker.mirrored()
    await member.fetch("t", 0, partition_max_bytes=1)
    await broker.mirrored()

    assert await shown.position() == "0-1"
    assert await shown.ids() == []


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, ALL), (2, ALL), (3, ALL[1:]), (4, ALL[1:]), (5, ALL[2:]), (8, ALL[2:]), (9, ALL[3:]), (10, [])],
)
@pytest.mark.parametrize("partition_max_bytes", [1 << 20, 1])
async def test_deliver_after_the_commit_that_another_broker_wrote_shows_only_what_is_left(
    brokers: list[WholeBroker], shown: Shown, offset: int, left: list[str], partition_max_bytes: int
) -> None:
    leader, coordinator = brokers
    member = leader.client()
    await member.own("t")
    for base in (0, 3, 5, 9):
        await member.fetch("t", base, partition_max_bytes=partition_max_bytes)
    committer = coordinator.client(member.client_id)
    committer.member_id, committer.generation = member.member_id, member.generation
    assert await committer.commit("t", offset) is ErrorCode.none
    await coordinator.mirrored()
    await leader.mirrored()

    assert await shown.ids() == left
    assert await shown.position() == "9-1"


async def test_deliver_passes_over_what_an_earlier_group_of_the_name_committed(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    member = broker.client()
    await member.own("t")
    assert await member.commit("t", 10) is ErrorCode.none
    await broker.mirrored()
    offset, own_id = (await store.command("HGET", shown.keys.acknowledged, "orders")).split()
    assert offset == b"10" and own_id.startswith(b"cgp_")
    await store.command("HSET", shown.keys.acknowledged, "orders", "10 cgp_0")
    await member.fetch("t", 0)
    await broker.mirrored()

    assert await shown.ids() == ALL


async def test_seeking_forward_leaves_what_was_passed_over_unread(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0, partition_max_bytes=1)
    await member.fetch("t", 9)
    await broker.mirrored()

    assert await shown.position() == "9-1"
    assert await shown.ids() == ["0-1", "9-1"]


async def test_commit_backwards_keeps_what_is_pending(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 5)
    await broker.mirrored()
    await member.commit("t", 0)
    await broker.mirrored()

    assert await shown.ids() == ["5-1", "9-1"]
    assert await member.committed("t") == 0


async def test_reset_to_an_earlier_offset_is_read_again(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 10)
    await member.leave()
    member.client.end()
    await broker.mirrored()
    assert await broker.client("admin").commit("t", 0) is ErrorCode.none

    again = broker.client()
    await again.own("t")
    await again.fetch("t", await again.committed("t"))
    await broker.mirrored()

    assert await shown.pending() == [(entry, again.member_id, 1) for entry in ALL]


async def test_rebalance_hands_pending_entries_over(brokers: list[WholeBroker], shown: Shown) -> None:
    old = brokers[0].client("old")
    await old.own("t")
    await old.fetch("t", 0)
    await old.commit("t", 3)
    await brokers[0].mirrored()
    assert await shown.consumers() == {old.member_id: 3}

    new = brokers[1].client("new")
    joining = asyncio.ensure_future(new.join("t"))
    group = shown.store.group_keys("default", "orders").group
    async with asyncio.timeout(40):
        while await shown.store.command("HGET", group, "state") != b"PreparingRebalance":
            await asyncio.sleep(0.005)
    await asyncio.gather(old.join("t"), joining)
    leader, follower = (old, new) if old.members else (new, old)
    plan = {old.member_id: {"t": [1]}, new.member_id: {"t": [0]}}
    await asyncio.gather(leader.sync(plan), follower.sync())
    for broker in brokers:
        await broker.mirrored()
    assert await shown.consumers() == {old.member_id: 3}  # delivered to it, and nobody has read them since

    await new.fetch("t", await new.committed("t"), partition_max_bytes=1)
    await brokers[1].mirrored()

    assert await shown.pending() == [("3-1", new.member_id, 1)]
    assert await shown.consumers() == {new.member_id: 1}
    assert await shown.position() == "3-1"


async def test_reader_that_lost_the_partition_shows_nothing_more(brokers: list[WholeBroker], shown: Shown) -> None:
    first, second = brokers[0].client("first"), brokers[1].client("second")
    await first.own("t")
    await first.fetch("t", 0, partition_max_bytes=1)
    await brokers[0].mirrored()
    await first.leave()
    await second.own("t")
    await brokers[1].mirrored()
    await first.fetch("t", 3)  # still reads, as Kafka lets it
    await brokers[0].mirrored()

    assert (await shown.position(), await shown.ids()) == ("0-1", ["0-1"])


async def test_fetch_before_its_owner_is_noted_is_shown_when_it_is(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.fetch("t", 0)
    await broker.mirrored()
    assert await shown.position() is None
    await member.own("t")
    await broker.mirrored()

    assert await shown.ids() == ALL


async def test_mirror_clients_with_equal_names_belong_to_no_group(broker: WholeBroker, shown: Shown) -> None:
    for group_id in ("orders", "billing"):
        member = broker.client("app")
        member.group_id = group_id
        await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()

    assert await shown.position() is None


@pytest.mark.parametrize("committed", [False, True])
async def test_clients_with_default_ids_on_one_host_never_show_each_others_position(
    broker: WholeBroker, shown: Shown, committed: bool
) -> None:
    """A member and a client of no group, both `rdkafka`: the first to read counts, then neither."""
    member, stranger = broker.client("rdkafka"), broker.client("rdkafka")
    await member.own("t")
    if committed:
        assert await member.commit("t", 3) is ErrorCode.none
    await member.fetch("t", 3, partition_max_bytes=1)
    await broker.mirrored()
    assert await shown.position() == "3-1"

    await stranger.fetch("t", 0)
    await broker.mirrored()
    assert await shown.position() == "3-1"
    for _ in range(3):
        await member.fetch("t", 5, partition_max_bytes=1)
        await stranger.fetch("t", 9)
        await broker.mirrored()
    assert await shown.position() == ("3-0" if committed else None)

    assert await member.commit("t", 9) is ErrorCode.none
    await stranger.fetch("t", 0)
    await broker.mirrored()
    assert (await shown.position(), await shown.ids()) == ("9-0", [])


async def test_members_of_two_groups_with_default_ids_show_what_each_committed(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    members = [broker.client("rdkafka") for _ in range(2)]
    for member, group_id in zip(members, ("orders", "billing"), strict=True):
        member.group_id = group_id
        await member.own("t")
        await member.fetch("t", 0)
    await broker.mirrored()
    for offset, (member, base) in enumerate(zip(members, (3, 9), strict=True)):
        assert await member.commit("t", base) is ErrorCode.none
        await member.fetch("t", offset)
    await broker.mirrored()

    assert (await shown.position(), await shown.ids()) == ("3-0", [])
    billing = Shown(store, shown.keys, "billing")
    assert (await billing.position(), await billing.ids()) == ("9-0", [])


async def test_reader_that_reconnects_is_the_owner_still(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client("rdkafka")
    await member.own("t")
    await member.fetch("t", 0, partition_max_bytes=1)
    await broker.mirrored()
    member.client.end()

    again = broker.client("rdkafka")
    await again.fetch("t", 3)
    await broker.mirrored()
    assert await shown.ids() == ALL


async def test_next_generation_is_judged_anew(broker: WholeBroker, shown: Shown) -> None:
    member, stranger = broker.client("rdkafka"), broker.client("rdkafka")
    await member.own("t")
    for _ in range(3):
        await member.fetch("t", 0)
        await stranger.fetch("t", 5)
    await broker.mirrored()
    assert await shown.position() is None

    stranger.client.end()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    assert await shown.ids() == ALL


async def test_groups_with_clients_of_their_own_have_mirrors_side_by_side(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    for group_id, offset in (("orders", 0), ("billing", 5)):
        member = broker.client(f"{group_id}-app")
        member.group_id = group_id
        await member.own("t")
        await member.fetch("t", offset)
    await broker.mirrored()

    assert await shown.ids() == ALL
    assert await Shown(store, shown.keys, "billing").ids() == ALL[2:]


async def test_entries_trimmed_while_pending_are_acknowledged_and_passed_over(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    await store.command("XTRIM", shown.keys.log, "MINID", "9-1")
    assert await shown.ids() == ALL  # dangling

    await member.commit("t", 6)
    await broker.mirrored()
    assert await shown.ids() == ["9-1"]
    await member.fetch("t", 9)
    await broker.mirrored()
    assert await shown.ids() == ["9-1"]


@pytest.mark.parametrize("pending_max", [3])
async def test_pending_entries_are_bounded(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    assert await shown.ids() == ALL[1:]
    await broker.client("producer").produce("t", 1)
    await member.fetch("t", 10)
    await broker.mirrored()

    assert await shown.ids() == ["5-1", "9-1", "10-1"]


@pytest.mark.parametrize("pending_max", [10_000])
async def test_many_entries_are_shown_and_acknowledged_in_slices(broker: WholeBroker, shown: Shown) -> None:
    await broker.client("producer").produce("t", *[1] * 1_200)
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    assert len(await shown.ids()) == 1_204
    await member.commit("t", 1_209)
    await broker.mirrored()

    assert await shown.ids() == ["1209-1"]


async def test_deleting_a_group_removes_its_mirror(broker: WholeBroker, shown: Shown, store: Store) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await member.commit("t", 5)
    await member.leave()
    await broker.mirrored()
    assert await member.delete() is ErrorCode.none
    await broker.mirrored()

    assert await shown.position() is None
    assert await store.command("EXISTS", shown.keys.owners, shown.keys.acknowledged) == 0


async def test_mirror_of_a_group_deleted_without_commits_is_removed_with_the_next_read(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    await member.leave()
    assert await member.delete() is ErrorCode.none
    await broker.mirrored()
    assert await shown.position() is not None
    other = broker.client("other")
    other.group_id = "billing"
    await other.own("t")
    await other.fetch("t", 0)
    await broker.mirrored()

    assert await shown.position() is None


async def test_group_that_expires_takes_its_mirror_along(broker: WholeBroker, shown: Shown, store: Store) -> None:
    nobody = broker.client()
    await nobody.commit("t", 5)
    await broker.mirrored()
    assert await shown.position() == "5-0"
    long_ago = f'{entry_json(5, -1, "", "")},"commit_time":1}}'
    await store.command("HSET", store.group_keys("default", "orders").offsets, "t:0", long_ago)
    assert await sweep(store, range(50), "1", partial(forget_mirrors, broker.context)) == 1
    await broker.mirrored()

    assert await shown.position() is None


async def test_group_made_again_has_a_mirror_of_its_own(broker: WholeBroker, shown: Shown) -> None:
    for _ in range(3):
        member = broker.client()
        await member.own("t")  # generation 1 again, after later ones of the group before
        await member.fetch("t", 5)
        await member.commit("t", 9)
        await broker.mirrored()
        assert await shown.pending() == [("9-1", member.member_id, 1)]
        await member.leave()
        assert await member.delete() is ErrorCode.none
        member.client.end()
        await broker.mirrored()


async def test_no_ghost_of_a_deleted_topic_returns(broker: WholeBroker, shown: Shown, store: Store) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await store.command("UNLINK", shown.keys.log)
    await member.commit("t", 10)
    await broker.mirrored()

    assert await store.command("EXISTS", shown.keys.log) == 0


@pytest.mark.parametrize("broken", ["mirror destroyed", "owners of another type", "log of another type"])
async def test_mirror_broken_fails_no_request_and_recovers(
    broker: WholeBroker, shown: Shown, store: Store, broken: str
) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    keys = shown.keys
    match broken:
        case "mirror destroyed":
            await store.command("XGROUP", "DESTROY", keys.log, "orders")
        case "owners of another type":
            await store.command("RENAME", keys.owners, f"{keys.owners}:kept")
            await store.command("SET", keys.owners, "?")
        case "log of another type":
            await store.command("RENAME", keys.log, f"{keys.log}:kept")
            await store.command("SET", keys.log, "?")
    if broken != "log of another type":
        await member.fetch("t", 0)
    assert await member.commit("t", 5) is ErrorCode.none
    await broker.mirrored()
    for key in (keys.owners, keys.log):
        if await store.command("EXISTS", f"{key}:kept"):
            await store.command("RENAME", f"{key}:kept", key)
    await asyncio.sleep(1.1)  # what was read about owners is read again
    await member.fetch("t", 5)
    await broker.mirrored()

    assert await shown.position() == "9-1"
    assert {"5-1", "9-1"} <= set(await shown.ids())


async def test_mirror_stopping_broker_writes_pending_samples(broker: WholeBroker, shown: Shown) -> None:
    member = broker.client()
    await member.own("t")
    await member.fetch("t", 0)
    await broker.mirrored()
    await member.commit("t", 5)

    assert broker.context.mirror is not None
    await broker.context.mirror.close()

    assert await shown.ids() == ["5-1", "9-1"]


async def test_fault_of_the_mirror_fails_no_fetch(
    broker: WholeBroker, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = broker.client()
    await member.own("t")
    with monkeypatch.context() as patched:
        patched.setattr(PartitionNews, "fetched", None)
        fetched = await member.fetch("t", 0)
    assert fetched == await member.fetch("t", 0)
    await broker.mirrored()
    assert await shown.ids() == ["0-1", "3-1", "5-1", "9-1"]


async def test_full_server_still_shows(broker: WholeBroker, shown: Shown, store: Store) -> None:
    member = broker.client()
    await member.own("t")
    await store.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await member.fetch("t", 0)
        assert await member.commit("t", 5) is ErrorCode.none
        await broker.mirrored()
        assert await shown.ids() == ["5-1", "9-1"]
    finally:
        await store.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("overrides", [{"tidegate_mirror_enable": "false"}, {"cleanup_policy": "compact"}])
async def test_topics_without_a_mirror(broker: WholeBroker, store: Store, overrides: dict[str, str]) -> None:
    made = await broker.create("quiet", 1, **overrides)
    member = broker.client()
    await member.own("quiet")
    await member.fetch("quiet", 0)
    await member.commit("quiet", 0)
    await broker.mirrored()
    keys = store.log_keys("default", "quiet", 0, made.topic_hex)

    assert await store.command("XINFO", "GROUPS", keys.log) == []
    assert await store.command("EXISTS", keys.owners) == 0


async def test_other_protocol_types_and_unreadable_assignments_are_no_owners(
    broker: WholeBroker, shown: Shown, store: Store
) -> None:
    member = broker.client()
    await member.join("t")
    await member.sync({member.member_id: {"t": [0, 7], "unknown": [0]}, "stranger": {"t": [1]}})
    await broker.mirrored()
    owners: Sequence[bytes] = await store.command("HKEYS", shown.keys.owners)
    other = store.log_keys("default", "t", 1, shown.keys.log.split(":")[-2])

    assert owners == [b"orders"]
    assert await store.command("EXISTS", other.owners) == 0


async def test_assignment_of_a_thousand_partitions_is_noted(broker: WholeBroker, store: Store) -> None:
    wide = await broker.create("wide", 1_000)
    member = broker.client()
    await member.join("wide")
    answer = await asyncio.wait_for(member.sync({member.member_id: {"wide": range(1_000)}}), 30)
    assert answer.assignment
    await broker.mirrored()

    noted = [
        await store.command("HLEN", store.log_keys("default", "wide", index, wide.topic_hex).owners)
        for index in range(0, 1_000, 37)
    ]
    assert set(noted) == {1}
