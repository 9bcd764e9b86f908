"""Streams groups as a state machine: never two members that run a task, and truthful members reach the target."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from tests.support.python_calls import counted_calls
from tests.support.streams import WORD_COUNT_TOPICS, Topics, word_count
from tidegate.errors import GroupIdNotFound, InvalidRequest, KafkaError, UnknownMemberId
from tidegate.groups.consumer.errors import FencedMemberEpoch, UnreleasedInstanceId
from tidegate.groups.consumer.membership import Expired
from tidegate.groups.consumer.model import ConsumerGroupState
from tidegate.groups.streams import stored
from tidegate.groups.streams.decisions import StreamsDecided, decide, expire
from tidegate.groups.streams.model import NO_TASKS, StreamsAnswer, StreamsGroup, StreamsHeartbeat, Tasks
from tidegate.groups.streams.topology import StatusCode, Subtopology, Topology


class Group:
    """A group with the topics of a word count, and short ways to ask it."""

    def __init__(self, counts: dict[str, int] | None = None, topology: Topology | None = None) -> None:
        self.topics = Topics(dict(WORD_COUNT_TOPICS) if counts is None else counts)
        self.topology = topology or word_count()
        self.group = StreamsGroup()

    def send(self, *requests: StreamsHeartbeat) -> list[StreamsDecided]:
        """Decide on a copy, as a broker does; the copy replaces the group."""
        self.group = self.group.copy()
        answers = decide(self.group, requests, self.topics, 1_000)
        self.check()
        return answers

    def check(self) -> None:
        """No task runs twice, no process has one twice; every record survives its stored form."""
        members = self.group.members.values()
        held = [task for member in members for task in member.held]
        assert len(held) == len(set(held))
        assert set(held) == self.group.owners.keys()
        roles = [(one.process_id, task) for one in members for task in [*one.held, *one.standby, *one.standby_revoking]]
        assert len(roles) == len(set(roles)), "a process has a task twice"
        for member in members:
            record = stored.dump_member(self.group, member, 45_000)
            assert stored.load_member(member.member_id, record.encode()) == member

    def join(self, member: str, process: str | None = None, **fields: Any) -> StreamsAnswer:
        values = {
            "topology": self.topology,
            "process_id": process or f"p-{member}",
            "rebalance_timeout_ms": 1_000,
            "owned": NO_TASKS,
            **fields,
        }
        return answered(self.send(StreamsHeartbeat(member, 0, **values))[0])

    def heartbeat(self, member: str, epoch: int, owned: Tasks | None = None, **fields: Any) -> StreamsAnswer:
        return answered(self.send(StreamsHeartbeat(member, epoch, owned=owned, **fields))[0])


def answered(decided: StreamsDecided) -> StreamsAnswer:
    if isinstance(decided, KafkaError):
        raise decided
    return decided


def codes(answer: StreamsAnswer) -> list[StatusCode]:
    return [code for code, _ in answer.statuses]


SOURCE = Topology(0, (Subtopology("0", ("lines",)),))


def tasks(*indexes: int) -> Tasks:
    return Tasks(frozenset(("0", index) for index in indexes))


def test_first_join_gets_all_tasks_at_epoch_two() -> None:
    group = Group(topology=SOURCE)

    assert group.join("a") == StreamsAnswer("a", 2, tasks(0, 1, 2, 3))
    assert group.heartbeat("a", 2).tasks is None
    assert group.group.state is ConsumerGroupState.STABLE


def test_second_member_waits_for_closed_tasks() -> None:
    group = Group(topology=SOURCE)
    group.join("a")

    assert group.join("b") == StreamsAnswer("b", 3, NO_TASKS)
    assert group.heartbeat("a", 2) == StreamsAnswer("a", 2, tasks(0, 1))
    assert group.heartbeat("b", 3, NO_TASKS).tasks is None
    assert group.group.state is ConsumerGroupState.RECONCILING
    assert group.heartbeat("a", 2, tasks(0, 1)) == StreamsAnswer("a", 3)
    assert group.heartbeat("b", 3, NO_TASKS) == StreamsAnswer("b", 3, tasks(2, 3))
    assert group.heartbeat("a", 2, tasks(0, 1)).member_epoch == 3, "the answer was lost"
    for epoch in (1, 4):
        with pytest.raises(FencedMemberEpoch):
            group.heartbeat("a", epoch)


def test_lost_answer_is_repeated_for_other_owned_tasks() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    group.join("b")
    group.heartbeat("a", 2)  # its answer is lost

    assert group.heartbeat("a", 2, tasks(0, 1, 2, 3)) == StreamsAnswer("a", 2, tasks(0, 1))


def test_leave_gives_tasks_at_next_heartbeat() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    group.join("b")
    group.heartbeat("a", 2)
    group.heartbeat("a", 2, tasks(0, 1))

    assert group.heartbeat("b", -1).member_epoch == -1
    assert group.group.state is ConsumerGroupState.ASSIGNING
    assert group.heartbeat("a", 3) == StreamsAnswer("a", 4, tasks(0, 1, 2, 3))
    with pytest.raises(UnknownMemberId):
        group.heartbeat("b", 3)


def test_expired_revocation_frees_tasks() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    group.join("b")
    group.heartbeat("a", 2)
    assert group.group.revocations == {"a": 1_000}

    expire(group.group, [Expired("a", "revocation_timed_out")])

    assert group.heartbeat("b", 3, NO_TASKS).tasks == tasks(0, 1, 2, 3)


def test_missing_source_is_reported_until_it_exists() -> None:
    group = Group({}, SOURCE)

    joined = group.join("a")
    assert (joined.member_epoch, joined.tasks, codes(joined)) == (2, NO_TASKS, [StatusCode.MISSING_SOURCE_TOPICS])
    assert group.group.state is ConsumerGroupState.NOT_READY
    assert codes(group.heartbeat("a", 2)) == [StatusCode.MISSING_SOURCE_TOPICS]

    group.topics.counts["lines"] = 2
    assert group.heartbeat("a", 2) == StreamsAnswer("a", 3, tasks(0, 1))


def test_missing_internal_topics_are_named_with_partitions() -> None:
    group = Group({"lines": 4})

    assert codes(group.join("a")) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert [(one.name, one.partition_count) for one in group.group.configured.missing] == [
        ("app-counts-changelog", 4),
        ("app-words-repartition", 4),
    ]


def test_deleted_source_takes_tasks_away() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    del group.topics.counts["lines"]

    answer = group.heartbeat("a", 2)

    assert (answer.member_epoch, answer.tasks) == (2, NO_TASKS)
    assert group.heartbeat("a", 2, NO_TASKS).member_epoch == 3
    assert group.group.state is ConsumerGroupState.NOT_READY


def test_other_topology_is_refused_while_members_remain() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    group.topology = Topology(1, (Subtopology("0", ("lines",)), Subtopology("1", ("other",))))

    with pytest.raises(InvalidRequest):
        group.join("b")
    group.heartbeat("a", -1)
    group.topics.counts["other"] = 1
    assert group.join("b").tasks == Tasks(frozenset({("1", 0), *tasks(0, 1, 2, 3).active}))


def test_lower_topology_epoch_joins_without_tasks() -> None:
    group = Group(topology=dataclasses.replace(SOURCE, epoch=3))
    group.join("a")

    joined = group.join("b", topology=Topology(2, (Subtopology("0", ("old",)),)))

    assert (joined.tasks, codes(joined)) == (NO_TASKS, [StatusCode.STALE_TOPOLOGY])
    assert group.heartbeat("a", 2) == StreamsAnswer("a", 3)


def test_shutdown_is_answered_until_all_left() -> None:
    group = Group(topology=SOURCE)
    group.join("a")
    group.join("b")
    group.heartbeat("a", 2, shutdown=True)

    assert codes(group.heartbeat("b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]
    group.heartbeat("b", -1)
    group.heartbeat("a", -1)
    assert not codes(group.join("c"))


def test_changed_standby_replicas_assign_anew() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    group.group.standby_replicas = 1

    answer = group.heartbeat("b", 3, NO_TASKS)

    assert group.group.target_epoch == 4
    assert {task for one in group.group.targets.values() for task in one.standby} == {("1", n) for n in range(4)}
    assert answer.member_epoch == 4


def test_static_member_inherits_tasks() -> None:
    group = Group(topology=SOURCE)
    group.join("a", instance_id="i")
    for member in ("a", "b"):
        with pytest.raises(UnreleasedInstanceId):
            group.join(member, instance_id="i")

    assert group.heartbeat("a", -2, instance_id="i").member_epoch == -2
    assert group.group.state is ConsumerGroupState.RECONCILING
    assert group.join("b", process="p-a", instance_id="i") == StreamsAnswer("b", 2, tasks(0, 1, 2, 3))
    with pytest.raises(UnknownMemberId):
        group.heartbeat("a", 2)


def test_endpoints_are_sent_until_their_epoch_is_known() -> None:
    group = Group(topology=SOURCE)
    joined = group.join("a", endpoint=("host", 8080), endpoint_epoch=-1)

    assert joined.endpoints is not None
    assert (joined.endpoints[0].endpoint, joined.endpoints[0].active) == (("host", 8080), {"lines": (0, 1, 2, 3)})
    assert group.heartbeat("a", 2, endpoint_epoch=joined.endpoint_epoch).endpoints is None


def test_endpoints_are_collected_once_for_all_requests() -> None:
    members = 20
    joins = [
        StreamsHeartbeat(f"m{n}", 0, topology=SOURCE, process_id=f"p{n}", endpoint=("host", n), endpoint_epoch=-1)
        for n in range(members)
    ]

    with counted_calls() as calls:
        answers = decide(StreamsGroup(), joins, Topics(dict(WORD_COUNT_TOPICS)), 1_000)

    assert {len(answered(one).endpoints or ()) for one in answers} == {members}
    assert calls["partitions_of"] <= 2 * members


class ComparedId(str):
    """A subtopology id that counts comparisons."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        ComparedId.comparisons += 1
        return str.__eq__(self, other)


def test_tasks_of_many_subtopologies_are_written_without_walks() -> None:
    count = 500
    topology = Topology(0, tuple(Subtopology(ComparedId(n), (f"s{n}",)) for n in range(count)))
    group = StreamsGroup()
    join = StreamsHeartbeat("a", 0, topology=topology, process_id="p", rebalance_timeout_ms=1_000)
    decide(group, [join], Topics({f"s{n}": 1 for n in range(count)}), 1_000)
    ComparedId.comparisons = 0

    record = stored.dump_member(group, group.members["a"], 45_000)

    assert len(stored.load_member("a", record.encode()).assigned) == count
    assert ComparedId.comparisons <= 40 * count


def test_heartbeat_of_unknown_group() -> None:
    with pytest.raises(GroupIdNotFound):
        Group().heartbeat("a", 1)


def test_record_has_partitions_of_active_tasks_by_topic_id() -> None:
    group = Group()
    group.join("a")

    record = stored.dump_member(group.group, group.group.members["a"], 45_000)

    assert '"assigned":{"id-app-words-repartition":{"0":2,"1":2,"2":2,"3":2},"id-lines":{"0":2' in record


@dataclasses.dataclass
class Client:
    """A truthful member: it runs what it was last answered, until it is answered otherwise."""

    member_id: str
    process_id: str
    epoch: int = 0
    owned: Tasks = NO_TASKS

    def request(self, topology: Topology) -> StreamsHeartbeat:
        if self.epoch == 0:
            return StreamsHeartbeat(
                self.member_id, 0, None, None, 1_000, topology, NO_TASKS, process_id=self.process_id
            )
        return StreamsHeartbeat(self.member_id, self.epoch, owned=self.owned)

    def apply(self, decided: StreamsDecided) -> None:
        if isinstance(decided, KafkaError):
            self.epoch, self.owned = 0, NO_TASKS
            return
        self.epoch = decided.member_epoch
        if decided.tasks is not None:
            self.owned = decided.tasks


@pytest.mark.parametrize("seed", range(20))
def test_random_members_never_share_tasks_and_become_stable(seed: int) -> None:
    draw = random.Random(seed)
    group, clients, made = Group(), list[Client](), 0
    for _ in range(150):
        pick = draw.random()
        if pick < 0.12 or not clients:
            made += 1
            clients.append(Client(f"m{made}", f"p{draw.randint(0, 3)}"))
            clients[-1].apply(group.send(clients[-1].request(group.topology))[0])
            continue
        client = draw.choice(clients)
        if pick < 0.18:
            group.send(StreamsHeartbeat(client.member_id, -1))
            clients.remove(client)
        elif pick < 0.22:
            group.group = group.group.copy()
            expire(group.group, [Expired(client.member_id, "session_timed_out")])
            client.epoch, client.owned = 0, NO_TASKS
        elif pick < 0.27:
            group.group.standby_replicas = draw.randint(0, 2)
        elif pick < 0.32:  # the answer is lost
            group.send(client.request(group.topology))
        else:
            client.apply(group.send(client.request(group.topology))[0])
        live = [one for one in clients if one.member_id in group.group.members and one.epoch > 0]
        running = [task for one in live for task in one.owned.active]
        assert len(running) == len(set(running))
    for _ in range(20):
        for client in clients:
            client.apply(group.send(client.request(group.topology))[0])
    assert group.group.state is ConsumerGroupState.STABLE
    targets = group.group.targets
    assert all(client.owned == targets[client.member_id] for client in clients)
    assert sorted(task for client in clients for task in client.owned.active) == sorted(
        (name, index) for name in "01" for index in range(4)
    )
