"""Offsets against a plain dict: commits, fetches, deletions, sweeps and topics made again, through two brokers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.scripts.test_offsets_commit import codes, commit_request
from tests.scripts.test_offsets_fetch import answers, fetch_request
from tests.support import clock as stepped
from tests.support.handlers import Broker, FakeCatalog, given_group, topic
from tests.support.machines import run_machine
from tests.support.valkey import ValkeyServer
from tidegate.errors import GroupIdNotFound, NonEmptyGroup
from tidegate.groups import directory, offsets
from tidegate.groups.retention import forget_topic, sweep
from tidegate.settings import Settings
from tidegate.store.store import Store

NONE, UNKNOWN_PARTITION, TOO_LARGE = 0, 3, 12
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE, GROUP_NOT_FOUND = 22, 25, 27, 69
WEEK_MS = 7 * 24 * 3_600_000
PARTITIONS = 2
SHARDS = 2

groups = st.sampled_from(["orders", "a/b {c}"])
topics = st.sampled_from(["t1", "t2"])
members = st.sampled_from(["a", "b", ""])
states = st.sampled_from(["Stable", "PreparingRebalance", "CompletingRebalance", "Empty"])
brokers = st.integers(0, 1)
metadata = st.sampled_from(["", "plain", 'a "quoted"\\\n', "😀", "x" * 4_097])
partitions = st.dictionaries(
    st.tuples(topics, st.integers(0, PARTITIONS)), st.tuples(st.integers(-1, 1 << 62), metadata), max_size=3
)
commits = st.tuples(st.integers(-1, 1), members, partitions)
"""Generation relative to the group's (1: the group's own, 0: the one before, -1: none), member, what is committed."""


@dataclass(slots=True)
class Group:
    """What the model knows of one group."""

    state: str = "Empty"
    protocol_type: str = ""
    members: tuple[str, ...] = ()
    subscribed: tuple[str, ...] = ()
    since: int = 0
    offsets: dict[str, tuple[int, str, int, int]] = field(default_factory=dict)
    """Field -> offset, metadata, number of the topic, commit time."""


class Offsets(RuleBasedStateMachine):
    """Each rule does the same to the brokers and to the dict."""

    url = ""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.model: dict[str, Group] = {}
        self.generation: dict[str, int] = {}
        self.numbers = {"t1": 1, "t2": 2}
        self.now = stepped.START_MS
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.stores = [Store(Settings(redis_url=self.url, coordinator_shards=SHARDS)) for _ in range(2)]
        for store in self.stores:
            await store.start()
        await self.stores[0].command("FLUSHALL")
        self.clock = stepped.SteppedClock(self.stores[0])
        await self.clock.set()
        self.brokers = [Broker(store, FakeCatalog(), number) for number, store in enumerate(self.stores)]
        self._report_topics()

    def teardown(self) -> None:
        async def stop() -> None:
            for store in self.stores:
                await store.close()

        if hasattr(self, "runner"):
            self.runner.run(stop())
            self.runner.close()

    def _report_topics(self) -> None:
        """Both brokers can find the topics as they are; only the first has been notified."""
        for broker in self.brokers:
            broker.catalog.stored = {name: topic(name, PARTITIONS, number) for name, number in self.numbers.items()}
        self.brokers[0].catalog.known = dict(self.brokers[0].catalog.stored)

    # -- what happens to groups

    @rule(group_id=groups, state=states, joined=st.sets(st.sampled_from("ab"), min_size=1), of=st.sets(topics))
    def rebalance(self, group_id: str, state: str, joined: set[str], of: set[str]) -> None:
        """The group's membership becomes another one, as joins and syncs would leave it."""
        generation = self.generation[group_id] = self.generation.get(group_id, 0) + 1
        group = self.model.setdefault(group_id, Group())
        group.state, group.protocol_type, group.since = state, "consumer", self.now
        group.members = tuple(sorted(joined)) if state != "Empty" else ()
        group.subscribed = tuple(sorted(of)) if state != "Empty" else ()

        async def write() -> None:
            keys = self.stores[0].group_keys("default", group_id)
            await self.stores[0].command("DEL", keys.members, keys.sessions, keys.subscriptions, keys.assignments)
            await given_group(
                self.stores[0],
                keys,
                state=state,
                generation=generation,
                members=group.members,
                subscribed=group.subscribed,
                state_since=self.now,
            )

        self.runner.run(write())

    @rule(number=brokers, group_id=groups)
    def delete_group(self, number: int, group_id: str) -> None:
        expected: type[Exception] | None = None
        group = self.model.get(group_id)
        if group is None:
            expected = GroupIdNotFound
        elif group.state != "Empty":
            expected = NonEmptyGroup
        else:
            self._forget(group_id)

        async def delete() -> type[Exception] | None:
            store = self.stores[number]
            try:
                await directory.delete_group(store, store.group_keys("default", group_id), "1")
            except (GroupIdNotFound, NonEmptyGroup) as error:
                return type(error)
            return None

        assert self.runner.run(delete()) is expected

    def _forget(self, group_id: str) -> None:
        del self.model[group_id]
        self.generation.pop(group_id, None)

    # -- what happens to offsets

    @rule(number=brokers, group_id=groups, asked=st.lists(commits, min_size=1, max_size=4))
    def commit_in_one_tick(self, number: int, group_id: str, asked: list[tuple[int, str, Any]]) -> None:
        expected, requests = [], []
        for generation, member_id, wanted in asked:
            absolute = -1 if generation < 0 else self.generation.get(group_id, 0) - 1 + generation
            if generation >= 0:
                absolute = max(absolute, 0)
            by_topic: dict[str, dict[int, tuple[int, str]]] = {}
            for (name, index), value in wanted.items():
                by_topic.setdefault(name, {})[index] = value
            requests.append(
                commit_request(9, group_id=group_id, generation=absolute, member_id=member_id, topics=dict(by_topic))
            )
            expected.append(self._commit(group_id, absolute, member_id, wanted))

        async def commit() -> list[dict[str, int]]:
            broker = self.brokers[number]
            await broker.catalog.refresh()
            return [codes(one) for one in await asyncio.gather(*(broker.ask(request) for request in requests))]

        assert self.runner.run(commit()) == expected

    def _commit(self, group_id: str, generation: int, member_id: str, wanted: Any) -> dict[str, int]:
        """The model's commit: code by field."""
        fields = {f"{name}:{index}": index < PARTITIONS for name, index in wanted}
        if not any(fields.values()):
            return dict.fromkeys(fields, UNKNOWN_PARTITION)
        taken = {
            f"{name}:{index}": (offset, text, self.numbers[name], self.now)
            for (name, index), (offset, text) in wanted.items()
            if index < PARTITIONS and len(text) <= 4_096
        }
        code = self._judge(group_id, generation, member_id)
        if code == NONE and taken:
            self.model.setdefault(group_id, Group(since=self.now)).offsets.update(taken)
        return {
            name: UNKNOWN_PARTITION if not exists else code or (NONE if name in taken else TOO_LARGE)
            for name, exists in fields.items()
        }

    def _judge(self, group_id: str, generation: int, member_id: str) -> int:
        group = self.model.get(group_id)
        if group is None:
            return NONE if generation < 0 else GROUP_NOT_FOUND
        if group.state == "Empty":
            return NONE if generation < 0 else UNKNOWN_MEMBER
        if member_id not in group.members:
            return UNKNOWN_MEMBER
        if generation != self.generation[group_id]:
            return ILLEGAL_GENERATION
        return REBALANCE if group.state == "CompletingRebalance" else NONE

    @rule(number=brokers, group_id=groups, wanted=st.sets(st.tuples(topics, st.integers(0, PARTITIONS)), min_size=1))
    def delete_offsets(self, number: int, group_id: str, wanted: set[tuple[str, int]]) -> None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(wanted):
            by_topic.setdefault(name, []).append(index)
        group = self.model.get(group_id)
        expected: Any = GroupIdNotFound
        if group is not None:
            expected = {name for name in by_topic if name in group.subscribed}
            for name, index in wanted:
                if name not in expected:
                    group.offsets.pop(f"{name}:{index}", None)

        async def delete() -> Any:
            store = self.stores[number]
            try:
                return await offsets.delete(store, store.group_keys("default", group_id), "1", by_topic)
            except GroupIdNotFound as error:
                return type(error)

        assert self.runner.run(delete()) == expected

    @rule(name=topics, reported=st.booleans())
    def make_topic_again(self, name: str, reported: bool) -> None:
        """A topic is deleted and made again; `reported`: its offsets were removed, not only left behind."""
        old = topic(name, PARTITIONS, self.numbers[name])
        self.numbers[name] += 10
        self._report_topics()
        if not reported:
            self.brokers[1].catalog.known = dict(self.brokers[1].catalog.stored)
        if reported:
            for group in self.model.values():
                group.offsets = {
                    key: value
                    for key, value in group.offsets.items()
                    if (key.split(":")[0], value[2]) != (name, self.numbers[name] - 10)
                }
            self.runner.run(forget_topic(self.stores[0], "default", name, PARTITIONS, old.topic_hex))

    @rule(number=brokers, ms=st.sampled_from([1, WEEK_MS // 2, WEEK_MS]))
    def sweep_later(self, number: int, ms: int) -> None:
        self.now += ms
        for group_id, group in list(self.model.items()):
            group.offsets = {key: value for key, value in group.offsets.items() if self._is_kept(group, key, value)}
            is_retained = group.protocol_type != "" and self.now - group.since < WEEK_MS
            if group.state == "Empty" and not group.offsets and not is_retained:
                self._forget(group_id)

        async def step() -> None:
            await self.clock.advance(ms)
            await sweep(self.stores[number], range(SHARDS), "1")

        self.runner.run(step())

    def _is_kept(self, group: Group, key: str, value: tuple[int, str, int, int]) -> bool:
        since = value[3]
        if group.state == "Empty":
            since = max(since, group.since) if group.protocol_type else since
        elif group.state != "Stable" or key.split(":")[0] in group.subscribed:
            return True
        return self.now - since < WEEK_MS

    # -- what is read

    @rule(number=brokers, group_id=groups, wanted=st.sets(st.tuples(topics, st.integers(0, PARTITIONS))))
    def fetch_some(self, number: int, group_id: str, wanted: set[tuple[str, int]]) -> None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(wanted):
            by_topic.setdefault(name, []).append(index)
        found = self._fetch(number, {group_id: by_topic})[group_id]
        current = self._current(group_id)
        assert found == {
            f"{name}:{index}": current.get(f"{name}:{index}", (-1, -1, "", NONE)) for name, index in wanted
        }

    @invariant()
    def both_brokers_read_what_the_dict_holds(self) -> None:
        if not hasattr(self, "brokers"):
            return
        for number in range(2):
            found = self._fetch(number, {"orders": None, "a/b {c}": None})
            assert found == {group_id: self._current(group_id) for group_id in ("orders", "a/b {c}")}

    @invariant()
    def the_directory_lists_the_groups_that_are(self) -> None:
        if not hasattr(self, "brokers"):
            return
        listed = self.runner.run(directory.list_groups(self.stores[1], "default", range(SHARDS)))
        assert [(one.group_id, one.state, one.protocol_type) for one in listed] == [
            (group_id, group.state, group.protocol_type) for group_id, group in sorted(self.model.items())
        ]

    def _fetch(self, number: int, wanted: dict[str, Any]) -> dict[str, Any]:
        response = self.runner.run(self.brokers[number].ask(fetch_request(9, wanted)))
        read = answers(9, response)
        assert all(code == NONE for code, _ in read.values())
        return {group_id: partitions_read for group_id, (_, partitions_read) in read.items()}

    def _current(self, group_id: str) -> dict[str, tuple[int, int, str, int]]:
        """What counts of a group: the offsets of the topics as they are now."""
        group = self.model.get(group_id, Group())
        return {
            key: (offset, -1, text, NONE)
            for key, (offset, text, number, _) in group.offsets.items()
            if self.numbers[key.split(":")[0]] == number
        }


def test_offsets_agree_with_a_dict(valkey: ValkeyServer) -> None:
    stepped.install()
    try:
        Offsets.url = valkey.url
        run_machine(Offsets, examples=40, steps=25)
    finally:
        stepped.uninstall()
