"""Random conversations about KIP-848 groups with the assignor `range`, whose assignment is determined.

Nobody subscribes to a pattern: Kafka resolves it some time later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.differential.lockstep import TOPICS, Conversation

_STEPS: Final = (20, 45)
_UNCHANGED: Final = {
    "instance_id": None, "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": None,
    "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
}  # fmt: skip


@dataclass
class Member:
    """A member, by the answers of Kafka."""

    name: str
    instance_id: str | None = None
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    owned: dict[str, list[int]] = field(default_factory=dict)
    is_in: bool = False
    has_been_away: bool = False

    def follow(self, answer: Any) -> None:
        """Do as an answer says."""
        if answer["error_code"] == "none":
            if answer["member_epoch"] != self.epoch:
                self.previous_epoch, self.epoch = self.epoch, answer["member_epoch"]
            if answer["assignment"] is not None:
                self.owned = {one["topic_id"]: one["partitions"] for one in answer["assignment"]["topic_partitions"]}

    def forget(self) -> None:
        """It left."""
        self.is_in, self.has_been_away, self.owned, self.epoch = False, False, {}, 0


async def consumer_conversation(talk: Conversation) -> None:
    """Members join, report, leave, change what they read, and commit; an administrator describes the group."""
    chance = talk.chance
    members = [
        Member(
            f"member-{number}",
            f"static-{number}" if chance.random() < 0.3 else None,
            tuple(chance.sample(sorted(TOPICS), chance.randint(1, 3))),
        )
        for number in range(chance.randint(1, 4))
    ]
    for _ in range(chance.randint(*_STEPS)):
        await _step(talk, chance.choice(members))
        if chance.random() < 0.4:
            await talk.ask(69, 1, group_ids=(talk.group,), include_authorized_operations=chance.random() < 0.5)
    for member in members:
        if member.is_in and member.instance_id is not None:
            await _join(talk, member)


async def _step(talk: Conversation, member: Member) -> None:
    chance = talk.chance
    if not member.is_in or (member.instance_id is None and chance.random() < 0.05):
        await _join(talk, member)
        return
    steps = {
        _own: 6.0, _plain: 3.0, _own_less: 1.0, _own_at_another_epoch: 1.0, _subscribe: 1.0, _repeat: 0.5,
        _leave: 0.8, _go_away: 0.5, _commit: 2.0, _fetch_offsets: 1.0, _delete_offsets: 0.4, _odd: 0.7,
    }  # fmt: skip
    await chance.choices(list(steps), list(steps.values()))[0](talk, member)


async def _join(talk: Conversation, member: Member) -> None:
    answer = await _heartbeat(
        talk, member, 0, instance_id=member.instance_id, rebalance_timeout=120_000, topic_partitions=[],
        subscribed_topic_names=list(member.topics), server_assignor="range",
    )  # fmt: skip
    member.follow(answer)
    member.is_in = answer["error_code"] == "none"


async def _heartbeat(talk: Conversation, member: Member, epoch: int, note: str = "", **fields: Any) -> Any:
    values = {"member_id": member.name, "member_epoch": epoch, **_UNCHANGED, **fields}
    return await talk.ask(68, 1, member.name, note, **values)


def _partitions(owned: Mapping[str, list[int]]) -> list[Any]:
    """As a request names them."""
    return [
        {"topic_id": lambda target, name=name: target.topics[name], "partitions": list(indexes)}
        for name, indexes in owned.items()
    ]


async def _own(talk: Conversation, member: Member) -> None:
    member.follow(await _heartbeat(talk, member, member.epoch, topic_partitions=_partitions(member.owned)))


async def _plain(talk: Conversation, member: Member) -> None:
    member.follow(await _heartbeat(talk, member, member.epoch))


async def _own_less(talk: Conversation, member: Member) -> None:
    some = {name: indexes for name, indexes in member.owned.items() if talk.chance.random() < 0.5}
    member.follow(await _heartbeat(talk, member, member.epoch, topic_partitions=_partitions(some)))


async def _own_at_another_epoch(talk: Conversation, member: Member) -> None:
    epoch = member.epoch + talk.chance.choice((1, -1, -1, -2))
    if epoch > 0:
        note = "previous epoch" if epoch == member.previous_epoch else ""
        await _heartbeat(talk, member, epoch, note, topic_partitions=_partitions(member.owned))


async def _repeat(talk: Conversation, member: Member) -> None:
    """Everything again, as after an error."""
    fields = {"rebalance_timeout": 120_000, "subscribed_topic_names": list(member.topics)}
    owned = _partitions(member.owned)
    member.follow(await _heartbeat(talk, member, member.epoch, topic_partitions=owned, **fields))


async def _subscribe(talk: Conversation, member: Member) -> None:
    """Read other topics."""
    member.topics = tuple(talk.chance.sample(sorted(TOPICS), talk.chance.randint(1, 3)))
    member.follow(await _heartbeat(talk, member, member.epoch, subscribed_topic_names=list(member.topics)))


async def _leave(talk: Conversation, member: Member) -> None:
    await _heartbeat(talk, member, -1, instance_id=member.instance_id)
    member.forget()


async def _go_away(talk: Conversation, member: Member) -> None:
    if member.instance_id is not None:
        await _heartbeat(talk, member, -2, instance_id=member.instance_id)
        member.is_in, member.has_been_away = False, True


async def _odd(talk: Conversation, member: Member) -> None:
    """A request that should be refused, mostly."""
    chance = talk.chance
    await chance.choice([
        lambda: _heartbeat(talk, Member("stranger"), chance.choice((3, -1))),
        lambda: _heartbeat(talk, member, -3),
        lambda: _heartbeat(talk, member, member.epoch, server_assignor="sticky"),
        lambda: _heartbeat(talk, member, member.epoch, instance_id="nobody"),
        lambda: _heartbeat(talk, Member("newcomer"), 0, instance_id=member.instance_id or ""),
        lambda: _heartbeat(talk, member, member.epoch, subscribed_topic_regex="(("),
        lambda: _heartbeat(talk, member, member.epoch, rack_id=" "),
        lambda: talk.ask(42, 2, groups_names=(talk.group,)),
        lambda: talk.ask(88, 0, "thread", **_STREAMS_HEARTBEAT),
        lambda: talk.ask(77, 1, group_ids=(talk.group,), include_authorized_operations=False),
    ])()  # fmt: skip


_STREAMS_HEARTBEAT: Final = {
    "member_id": "thread", "member_epoch": 2, "endpoint_information_epoch": -1, "instance_id": None, "rack_id": None,
    "rebalance_timeout": -1, "topology": None, "active_tasks": None, "standby_tasks": None, "warmup_tasks": None,
    "process_id": None, "user_endpoint": None, "client_tags": None, "task_offsets": None, "task_end_offsets": None,
    "shutdown_application": False,
}  # fmt: skip
"""Of a group of another type."""


async def _commit(talk: Conversation, member: Member) -> None:
    """OffsetCommit of some partitions, one of which may not exist, at the member's epoch or one near it."""
    chance = talk.chance
    name = chance.choice(sorted(TOPICS))
    indexes = chance.sample(range(TOPICS[name] + 1), chance.randint(1, TOPICS[name]))
    partitions = [
        {"partition_index": index, "committed_offset": chance.randrange(100), "committed_leader_epoch": -1,
         "committed_metadata": ""}
        for index in indexes
    ]  # fmt: skip
    topic = {"name": name, "topic_id": lambda target: target.topics[name], "partitions": partitions}
    epoch = member.epoch + chance.choice((0, 0, 0, -1, 1))
    note = "back" if member.has_been_away else ""
    await talk.ask(
        8, chance.choice((9, 10)), member.name, note, generation_id_or_member_epoch=epoch, member_id=member.name,
        group_instance_id=None, topics=[topic],
    )  # fmt: skip


async def _fetch_offsets(talk: Conversation, member: Member) -> None:
    """OffsetFetch of everything at the member's epoch or one near it."""
    epoch = member.epoch + talk.chance.choice((0, 0, -1, 1))
    group = {"group_id": talk.group, "member_id": member.name, "member_epoch": epoch, "topics": None}
    await talk.ask(9, 9, member.name, groups=[group], require_stable=False)


async def _delete_offsets(talk: Conversation, member: Member) -> None:
    name = talk.chance.choice(sorted(TOPICS))
    await talk.ask(47, 0, topics=[{"name": name, "partitions": [{"partition_index": 0}]}])
