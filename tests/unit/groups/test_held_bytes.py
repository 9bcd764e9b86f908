"""What a group takes in memory is known: caches and limits count it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import hiredis
import pytest

from tests.support.streams import word_count
from tests.support.traced_memory import taken
from tidegate.errors import GroupMaxSizeReached
from tidegate.groups import held_bytes
from tidegate.groups.consumer import stored as consumer_stored
from tidegate.groups.consumer.model import ClassicMember, ConsumerGroup, HeartbeatRequest, Member
from tidegate.groups.held_bytes import check_size, text_bytes, texts_bytes
from tidegate.groups.share import stored as share_stored
from tidegate.groups.share.model import ShareGroup, ShareMember
from tidegate.groups.streams import stored as streams_stored
from tidegate.groups.streams.model import StreamsGroup, StreamsMember, Tasks

NAMES = tuple(f"orders.of.region.{number:06d}" for number in range(20_000))
PARTITIONS = frozenset((f"{number // 8:032x}", number % 8) for number in range(8_000))


def consumers(members: int, names: int, partitions: int) -> ConsumerGroup:
    group = ConsumerGroup(own_id="cgp_1", is_stored=True, is_consumer=True)
    each = sorted(PARTITIONS)
    for number in range(members):
        mine = each[number * partitions : (number + 1) * partitions]
        member = Member(f"member-{number:030d}", None, "rack", f"client-{number}", "/10.0.0.1", "java 4.1.0", 3, 2)
        subscribed = frozenset(NAMES[number : number + names])
        group.put(replaced(member, topics=subscribed, assigned=dict.fromkeys(mine, 3)))
        group.targets[f"member-{number:030d}"] = frozenset(mine)
    return group


def replaced(member: Any, **values: Any) -> Any:
    return type(member)(**{name: getattr(member, name) for name in member.__dataclass_fields__} | values)


def sharers(members: int, names: int, partitions: int) -> ShareGroup:
    group = ShareGroup(own_id="cgp_1", is_stored=True)
    mine = frozenset(sorted(PARTITIONS)[:partitions])
    for number in range(members):
        subscribed = frozenset(NAMES[number : number + names])
        group.put(ShareMember(f"m-{number:034d}", None, f"c{number}", "/::1", "java", 3, 2, subscribed, mine))
        group.targets[f"m-{number:034d}"] = mine
    return group


def threads(members: int, names: int, partitions: int) -> StreamsGroup:
    group = StreamsGroup(own_id="cgp_1", is_stored=True, is_streams=True, topology=word_count())
    tags = tuple((f"tag{number}", name) for number, name in enumerate(NAMES[:names]))
    for number in range(members):
        mine = frozenset(("1", number * partitions + index) for index in range(partitions))
        member = StreamsMember(f"m-{number:034d}", process_id=f"p{number:034d}", client_tags=tags)
        group.put(replaced(member, assigned=dict.fromkeys(mine, 3)))
        group.targets[f"m-{number:034d}"] = Tasks(mine)
    return group


def stored_by(module: Any, group: Any) -> Callable[[], Any]:
    """Of a type whose members and targets are stored without their group."""
    fields = module.dump_fields(group) | {"id": group.own_id}
    head = [fields[name].encode() if name in fields else None for name in module.HEAD]
    records = {name.encode(): module.dump_member(member, 45_000).encode() for name, member in group.members.items()}
    targets = {name.encode(): consumer_stored.dump_target(target).encode() for name, target in group.targets.items()}
    return lambda: module.load_group(head, records, targets)


def stored_threads(group: Any) -> Callable[[], Any]:
    fields = streams_stored.dump_fields(group) | {"id": group.own_id}
    head = [fields[name].encode() if name in fields else None for name in streams_stored.HEAD]
    records = {
        name.encode(): streams_stored.dump_member(group, member, 45_000).encode()
        for name, member in group.members.items()
    }
    targets = {
        name.encode(): streams_stored.dump_target(group, target).encode() for name, target in group.targets.items()
    }
    return lambda: streams_stored.load_group(head, records, targets)


KINDS = {
    "consumer": (consumers, partial(stored_by, consumer_stored)),
    "share": (sharers, partial(stored_by, share_stored)),
    "streams": (threads, stored_threads),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("members", "names", "partitions"), [(1, 1, 1), (1, 20_000, 0), (200, 3, 2), (100, 200, 0), (10, 1, 500)]
)
def test_groups_have_about_the_memory_that_is_counted(kind: str, members: int, names: int, partitions: int) -> None:
    make, stored = KINDS[kind]
    load = stored(make(members, names, partitions))
    load()
    held, group = taken(load)

    assert len(group.members) == members
    assert held < group.held_bytes < 4 * held + 10_000, (held, group.held_bytes)


def test_memory_of_texts_follows_every_change_of_the_members() -> None:
    rng = random.Random(3)
    group = consumers(5, 3, 2)
    for step in range(200):
        members = list(group.members.values())
        group = group.copy()
        if members and rng.random() < 0.4:
            group.remove(rng.choice(members).member_id)
        elif members and rng.random() < 0.5:
            topics = frozenset(rng.sample(NAMES, rng.randrange(9)))
            classic = rng.choice([None, ClassicMember(9_000, (("range", b"x" * rng.randrange(99)),))])
            group.put(replaced(rng.choice(members), topics=topics, classic=classic, regex="r" * step))
        else:
            group.put(Member(f"new-{step}", topics=frozenset(NAMES[:step])))
        assert group.texts_bytes == sum(map(texts_bytes, group.members.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_group_refuses_texts_beyond_its_memory(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    group = KINDS[kind][0](3, 10, 1)
    monkeypatch.setattr(held_bytes, "TEXTS_BYTES_MAX", group.texts_bytes + 5_000)
    first = next(iter(group.members))

    known = group.members[first]
    check_size(group, HeartbeatRequest("new", 0, topics=frozenset(NAMES[:5])))
    check_size(group, HeartbeatRequest(first, 3, topics=frozenset(NAMES[:5])), known)
    for request, member in (
        (HeartbeatRequest("new", 0, topics=frozenset(NAMES[:500])), None),
        (HeartbeatRequest(first, 3, topics=frozenset(NAMES[:500])), known),
        (HeartbeatRequest(first, 3, rack_id="r" * 9_000), known),
    ):
        with pytest.raises(GroupMaxSizeReached):
            check_size(group, request, member)
    monkeypatch.setattr(held_bytes, "TEXTS_BYTES_MAX", 1)
    check_size(group, known, known)  # who is there already may stay


def test_memory_of_a_text_stays_the_same_when_it_was_encoded() -> None:
    text = "é" * 1_000
    before = text_bytes(text)
    hiredis.pack_command(("SET", text))
    assert text_bytes(text) == before >= 2_000
