"""Replies that clients got, which may not contradict each other (I1, I4, I5, I7, I8, I10)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.model.world import Request
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.groups.model import Joined, JoinRefused, Synced

FORGET_ID = {"unknown_member_id", "fenced_instance_id"}
EXPECTED = FORGET_ID | {
    "rebalance_in_progress",
    "illegal_generation",
    "inconsistent_group_protocol",
    "member_id_required",
    "group_max_size_reached",
}
"""What a join or a sync may be refused with, in this model."""


@dataclass(slots=True)
class ReportedBroker:
    """The history of one group, by generation."""

    opened: dict[int, tuple[str, str]] = field(default_factory=dict)
    leader: dict[int, set[str]] = field(default_factory=dict)
    listed: dict[int, tuple[str, frozenset[str]]] = field(default_factory=dict)
    assigned: dict[tuple[int, str], bytes] = field(default_factory=dict)
    plan: dict[int, int] = field(default_factory=dict)
    owner: dict[tuple[int, int], str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    """Every member id that a client got."""

    def on_request(self, request: Request) -> None:
        """Take the answer of a request that ended; its client learns of it, unless it gave up."""
        error = request.task.exception()
        if error is not None:
            self._refused(request, error)
        elif isinstance(request.task.result(), Joined):
            self._joined(request, request.task.result())
        else:
            self._synced(request, request.task.result())
        if request.reported:
            request.client.request = None

    def _joined(self, request: Request, joined: Joined) -> None:
        self.ids.add(joined.member_id)
        generation, restarted = joined.generation, request.instance_id is not None and not request.member_id
        protocol = self.opened.setdefault(generation, (joined.protocol_type, joined.protocol))
        assert protocol == (joined.protocol_type, joined.protocol), "I5: answers of a generation differ"
        if not restarted:
            self._led(generation, joined.leader, request)
        if joined.members and not joined.skip_assignment:
            ids = frozenset(member.member_id for member in joined.members)
            assert joined.member_id in ids and joined.leader == joined.member_id, "I7: a list for who is not in it"
            listed = self.listed.setdefault(generation, (joined.member_id, ids))
            assert listed == (joined.member_id, ids), "I4, I7: two leaders, or two lists"
        if request.reported:
            client = request.client
            assert generation >= client.newest, "P2: a client got an older generation"
            client.member_id, client.generation, client.joined = joined.member_id, generation, joined
            client.newest = generation

    def _led(self, generation: int, leader: str, request: Request) -> None:
        leaders = self.leader.setdefault(generation, set())
        leaders.add(leader)
        static = {one.split("-")[0] for one in leaders}
        assert len(static) == 1, "I5: two leaders of a generation"  # a restarted static leader has another id

    def _synced(self, request: Request, synced: Synced) -> None:
        generation, member_id = request.generation, request.member_id
        known_replies = self.assigned.setdefault((generation, member_id), synced.assignment)
        assert known_replies == synced.assignment, "I8: an assignment changed"
        if not synced.assignment:
            return
        given = json.loads(synced.assignment)
        assert self.plan.setdefault(generation, given["plan"]) == given["plan"], "I9: two plans in a generation"
        assert given["generation"] == generation, "I9: an assignment of another generation"
        for partition in given["partitions"]:
            owner = self.owner.setdefault((generation, partition), given["owner"])
            assert owner == given["owner"], "P1, I10: two owners"
        assert given["owner"] == (request.instance_id or member_id), "P1: another member's assignment"

    def _refused(self, request: Request, error: BaseException) -> None:
        client = request.client
        if isinstance(error, StoreUnavailable):
            return
        cause = error.error if isinstance(error, JoinRefused) else error
        assert isinstance(cause, KafkaError), repr(error)
        code = cause.code.name
        assert code in EXPECTED, repr(error)
        if isinstance(error, JoinRefused) and code == "member_id_required":
            self.ids.add(error.member_id)
        if not request.reported:
            return
        if code == "member_id_required":
            assert isinstance(error, JoinRefused)
            client.member_id = error.member_id
        elif code in FORGET_ID or code == "group_max_size_reached":
            client.member_id = ""
