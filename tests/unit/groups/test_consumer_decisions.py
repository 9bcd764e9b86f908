"""Consumer groups as a state machine: never two owners of a partition, and truthful members reach the target."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from tidegate.errors import KafkaError
from tidegate.groups.consumer.decisions import Decided, decide, expire
from tidegate.groups.consumer.membership import Expired
from tidegate.groups.consumer.model import (
    ConsumerGroup,
    ConsumerGroupState,
    HeartbeatAnswer,
    HeartbeatRequest,
    Partitions,
)
from tidegate.groups.consumer.stored import dump_member, dump_target, load_member

SEEDS = range(20)
STEPS = 150


@dataclasses.dataclass
class Topics:
    """Topics of a test."""

    counts: dict[str, int]
    version: int = 1

    def find(self, name: str) -> tuple[str, int] | None:
        return (f"id-{name}", self.counts[name]) if name in self.counts else None

    def matching(self, regex: str, principal: str, host: str) -> Iterable[str]:
        return [name for name in self.counts if name.startswith(regex)]


@dataclasses.dataclass
class Client:
    """A truthful member: it owns what it was last answered, until another answer."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    epoch: int = 0
    owned: Partitions = frozenset()

    def request(self, topics: frozenset[str] | None = None) -> HeartbeatRequest:
        if self.epoch == 0:
            return HeartbeatRequest(self.member_id, 0, self.instance_id, None, 1_000, self.topics, owned=frozenset())
        return HeartbeatRequest(
            self.member_id, self.epoch, None, None, 1_000, self.topics if topics is None else topics, owned=self.owned
        )

    def apply(self, answer: Decided) -> None:
        if isinstance(answer, KafkaError):
            self.epoch, self.owned = 0, frozenset()
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment


class Machine:
    """A group and its clients; each step is drawn at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics = Topics({"t": 5, "u": 3, "v": 4})
        self.group = ConsumerGroup()
        self.clients: list[Client] = []
        self.made = 0

    def send(self, *requests: HeartbeatRequest) -> list[Decided]:
        """Decide on a copy, as a broker does; the copy replaces the group."""
        self.group = self.group.copy()
        answers = decide(self.group, requests, self.topics, 1_000)
        self.check()
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, HeartbeatAnswer) and request.owned:
                self.check_reported(request.member_id, request.owned)
        return answers

    def check_reported(self, member_id: str, owned: Partitions) -> None:
        """What an accepted heartbeat names is nobody else's: the answer that takes it away may get lost."""
        for other in self.group.members.values():
            assert other.member_id == member_id or not owned & other.assigned.keys()

    def check(self) -> None:
        """No partition has two owners; every record survives its stored form."""
        held = [partition for member in self.group.members.values() for partition in member.held]
        assert len(held) == len(set(held))
        assert set(held) == self.group.owners.keys()
        for member in self.group.members.values():
            assert load_member(member.member_id, dump_member(member, 45_000).encode()) == member
            assert dump_target(self.group.targets.get(member.member_id, frozenset()))

    def check_clients(self) -> None:
        """What two live clients believe to own never overlaps, while the group knows both."""
        live = [one for one in self.clients if one.member_id in self.group.members and one.epoch > 0]
        owned = [partition for one in live for partition in one.owned]
        assert len(owned) == len(set(owned))

    def step(self) -> None:
        pick = self.random.random()
        if pick < 0.12 or not self.clients:
            self.made += 1
            some = frozenset(self.random.sample(["t", "u", "v", "x"], self.random.randint(0, 3)))
            static = f"i{self.made}" if self.random.random() < 0.3 else None
            client = Client(f"m{self.made}", some, static)
            self.clients.append(client)
            client.apply(self.send(client.request())[0])
            return
        client = self.random.choice(self.clients)
        if pick < 0.18:
            self.send(HeartbeatRequest(client.member_id, -1))
            self.clients.remove(client)
        elif pick < 0.22:
            self.group = self.group.copy()
            epoch, was_member = self.group.epoch, client.member_id in self.group.members
            expire(self.group, [Expired(client.member_id, "session_timed_out")])
            assert self.group.epoch == epoch + was_member
            client.epoch, client.owned = 0, frozenset()
        elif pick < 0.27:
            name = self.random.choice("tuvx")
            self.topics.counts[name] = self.topics.counts.get(name, 0) + self.random.randint(0, 2)
            self.topics.version += 1
        elif pick < 0.30 and client.instance_id is not None and client.epoch > 0:
            self.send(HeartbeatRequest(client.member_id, -2, client.instance_id))
            target, topics = self.group.targets.get(client.member_id), self.group.members[client.member_id].topics
            epoch, is_assigned = self.group.epoch, self.group.epoch == self.group.target_epoch
            self.made += 1
            client.member_id, client.epoch, client.owned = f"m{self.made}", 0, frozenset()
            client.apply(self.send(client.request())[0])
            if topics == client.topics and is_assigned and self.group.epoch == epoch:
                assert self.group.targets.get(client.member_id) == target
        elif pick < 0.36:
            self.send(client.request())  # the answer gets lost
        elif pick < 0.42:
            client.topics = frozenset(self.random.sample(["t", "u", "v", "x"], self.random.randint(1, 3)))
            known, epoch = self.group.members.get(client.member_id), self.group.epoch
            client.apply(self.send(client.request())[0])
            assert known is None or known.topics == client.topics or client.epoch <= 0 or self.group.epoch > epoch
        else:
            some = self.random.sample(self.clients, min(len(self.clients), self.random.randint(1, 4)))
            for one, answer in zip(some, self.send(*(one.request() for one in some)), strict=True):
                one.apply(answer)
        self.check_clients()

    def run_until_stable(self) -> None:
        """Truthful heartbeats only, until nothing changes any more."""
        for _ in range(8):
            for client in self.clients:
                client.apply(self.send(client.request())[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_decide_keeps_one_owner_and_reaches_the_target(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(STEPS):
        machine.step()

    machine.run_until_stable()

    group = machine.group
    assert group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
    for client in machine.clients:
        target = group.targets.get(client.member_id, frozenset())  # none without any subscription
        assert client.owned == target == frozenset(group.members[client.member_id].assigned)
        assert client.epoch == group.epoch
    assigned = {partition for client in machine.clients for partition in client.owned}
    wanted = {name for client in machine.clients for name in client.topics}
    assert assigned == {
        (f"id-{name}", n) for name in wanted & machine.topics.counts.keys() for n in range(machine.topics.counts[name])
    }


def test_decide_many_joins_in_one_tick_compute_one_target() -> None:
    group = ConsumerGroup()
    requests = [Client(f"m{n}", frozenset(["t"])).request() for n in range(5)]

    answers = decide(group, requests, Topics({"t": 10}), 1_000)

    assert group.target_epoch == group.epoch
    assert [event.kind for event in group.events].count("assignment_stored") == 1
    assert {len(answer.assignment or ()) for answer in answers if isinstance(answer, HeartbeatAnswer)} == {2}


def test_decide_refuses_without_changing_the_group() -> None:
    group = ConsumerGroup()
    decide(group, [Client("a", frozenset(["t"])).request()], Topics({"t": 2}), 1_000)
    before = dataclasses.replace(group.copy())

    copy = group.copy()
    (answer,) = decide(copy, [HeartbeatRequest("a", 9)], Topics({"t": 2}), 1_000)

    assert isinstance(answer, KafkaError)
    assert not copy.is_changed and not copy.renewed and copy.members == before.members
