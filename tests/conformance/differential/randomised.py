"""Random conversations, one a seed: several members, one step after the other, outcomes that no clock decides."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from tests.conformance.differential import actors
from tests.conformance.differential.actors import Member, offsets
from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.messages import VERSIONS
from tests.conformance.differential.sides import Side
from tests.conformance.differential.targets import FULL, PROMPT, Profile
from tests.kit.member import subscription

_STEPS: Final = (15, 40)
_NAMES: Final = ("range", "sticky", "uniform")
_TOPICS: Final = (["orders"], ["orders", "payments"], ["payments"])

Step = Callable[[], Awaitable[Any]]


def random_conversation(seed: int) -> Callable[[Conversation], Awaitable[None]]:
    """The conversation of that seed."""

    async def hold(talk: Conversation) -> None:
        walk = _Walk(talk, random.Random(seed))
        for _ in range(walk.chance.randint(*_STEPS)):
            await walk.step()

    return hold


def profile_of(seed: int) -> Profile:
    """Every eighth is about small groups."""
    return FULL if seed % 8 == 0 else PROMPT


class _Walk:
    """Chooses each next step by chance and by the replies of Kafka so far."""

    def __init__(self, talk: Conversation, chance: random.Random) -> None:
        self.talk, self.chance = talk, chance
        self.order = chance.sample(_NAMES, len(_NAMES))
        self.members = [self._member(index) for index in range(chance.choice((1, 2, 2, 3, 3, 4, 5)))]
        self.joining: dict[str, Any] = {}
        self.syncing: dict[str, Any] = {}

    def _member(self, index: int) -> Member:
        chance = self.chance
        versions = {api: chance.choice(served) for api, served in VERSIONS.items()} if chance.random() < 0.7 else {}
        instance_id = f"static-{index}" if chance.random() < 0.35 else None
        if instance_id is not None:
            versions["JoinGroup"] = max(5, versions.get("JoinGroup", 9))
        return Member(
            self.talk,
            f"m{index}",
            instance_id,
            self._protocols(),
            session_timeout_ms=chance.choice((60_000, 90_000, 1_800_000)),
            rebalance_timeout_ms=chance.choice((120_000, 300_000)),
            versions=versions,
            client_id=f"client-{index}",
        )

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        """In one order for all, so that votes never tie; the first is always among them, nearly."""
        names = [name for name in self.order if name == self.order[0] or self.chance.random() < 0.4]
        if self.chance.random() < 0.03:
            names = names[1:] or [self.order[1]]
        metadata = subscription(self.chance.choice(_TOPICS), self.chance.choice((b"", b"", b"u")))
        return tuple((name, metadata) for name in names)

    async def step(self) -> None:
        """One step of one member, or now and then of an administrator."""
        if self.chance.random() < 0.15:
            await self._administrator()()
            return
        member = self.chance.choice(self.members)
        options = self._options(member)
        steps, weights = zip(*options, strict=True)
        await self.chance.choices(steps, weights)[0]()

    def _options(self, member: Member) -> list[tuple[Step, float]]:
        reported = self.talk.sides[0].of(member.name)
        rare = [(step, 0.15) for step in self._odd_ones(member)]
        if self._waits(self.joining, member):
            return [
                *rare,
                (member.heartbeat, 0.5),
                (member.commit, 0.5),
                (member.leave, 0.2),
                (self._join(member), 0.2),
            ]
        if not reported.member_id or reported.generation < 0:
            return [*rare, (self._join(member), 8), (member.leave, 0.1)]
        if self._waits(self.syncing, member):
            return [
                *rare,
                (member.heartbeat, 1),
                (self._join(member), 0.7),
                (self._rejoin(member), 0.3),
                (self._sync(member), 0.2),
            ]
        return [
            *rare,
            (self._sync(member), 5),
            (self._join(member), 4),
            (self._rejoin(member), 0.7),
            (member.heartbeat, 1.5),
            (self._commit(member), 1.5),
            (member.leave, 0.3),
            (self._restart(member), 0.8 if member.instance_id else 0.2),
        ]

    def _waits(self, parked: dict[str, Any], member: Member) -> bool:
        return member.name in parked and parked[member.name].is_parked

    def _join(self, member: Member) -> Step:
        async def step() -> None:
            self.joining[member.name] = await member.join()

        return step

    def _rejoin(self, member: Member) -> Step:
        """With other protocols or metadata."""

        async def step() -> None:
            self.joining[member.name] = await member.join(protocols=self._protocols())

        return step

    def _sync(self, member: Member) -> Step:
        async def step() -> None:
            self.syncing[member.name] = await member.sync()

        return step

    def _restart(self, member: Member) -> Step:
        """The process starts again: a static member takes its place, another is new."""

        async def step() -> None:
            member.forget()
            self.syncing.pop(member.name, None)
            self.joining[member.name] = await member.join()

        return step

    def _commit(self, member: Member) -> Step:
        async def step() -> None:
            partitions = {index: self.chance.randrange(1_000) for index in range(self.chance.randint(1, 4))}
            topics = offsets({self.chance.choice(("orders", "payments")): partitions}, self._metadata())
            await member.commit(topics=topics)

        return step

    def _metadata(self) -> str | None:
        return self.chance.choice((None, "", "note", "x" * 4_096, "x" * 4_097))

    def _odd_ones(self, member: Member) -> list[Step]:
        """Requests that should be refused, mostly."""
        chance, other = self.chance, self.chance.choice(self.members)
        aside = member.generation(chance.choice((-1, 1)))
        nobody: dict[str, Any] = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
        instance = {"member_id": "", "group_instance_id": other.instance_id or "nobody", "reason": "evicted"}
        stranger = {"member_id": "stranger", "group_instance_id": None, "reason": None}
        steps: list[Step] = [
            partial(member.join, chance.choice(VERSIONS["JoinGroup"]), member_id="stranger"),
            partial(member.join, protocol_type="connect"),
            partial(member.join, session_timeout=10),
            partial(member.sync, generation_id=aside),
            partial(member.sync, 5, protocol_name="nobody's"),
            partial(member.sync, member_id=other.id),
            partial(member.heartbeat, generation_id=aside),
            partial(member.heartbeat, 4, group_instance_id=other.instance_id or "nobody"),
            partial(member.commit, generation_id_or_member_epoch=aside),
            partial(member.commit, chance.choice((7, 8, 9)), group_instance_id=other.instance_id),
            partial(member.commit, **nobody),
            partial(actors.leave, self.talk, stranger, version=chance.choice((3, 4, 5))),
            partial(actors.leave, self.talk, member, other, version=chance.choice((3, 4, 5))),
            partial(actors.leave, self.talk, instance, version=chance.choice((3, 4, 5))),
            partial(member.sync, plan=self._strange_plan),
        ]
        return chance.sample(steps, 4)

    def _strange_plan(self, side: Side) -> list[dict[str, Any]]:
        """Nothing for some, something for a stranger."""
        some = self.members[0].plan(side)[:1]
        return [*some, {"member_id": "stranger", "assignment": b"for nobody"}]

    def _administrator(self) -> Step:
        talk, chance = self.talk, self.chance

        async def describe() -> None:
            await actors.describe(
                talk, chance.choice(VERSIONS["DescribeGroups"]), include_authorized_operations=chance.random() < 0.5
            )

        async def list_groups() -> None:
            states = chance.choice(((), ("Stable",), ("empty", "PreparingRebalance"), ("nope",)))
            await actors.list_groups(talk, chance.choice(VERSIONS["ListGroups"]), states_filter=states)

        async def fetch() -> None:
            version = chance.choice(VERSIONS["OffsetFetch"])
            topics = {"orders": (0, 1, 7), "nowhere": (0,)} if version < 2 or chance.random() < 0.5 else None
            await actors.fetch(talk, version, topics)

        async def delete() -> None:
            await actors.delete(talk, chance.choice(VERSIONS["DeleteGroups"]))

        async def delete_offsets() -> None:
            await actors.delete_offsets(talk, {"orders": (0, 1), "payments": (1, 5)})

        async def find() -> None:
            await actors.find(talk, chance.choice(VERSIONS["FindCoordinator"]))

        return chance.choices([describe, list_groups, fetch, delete, delete_offsets, find], [2, 2, 3, 1, 1.5, 0.5])[0]
