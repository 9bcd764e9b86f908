"""One parked join or sync, and how a refresh of its group answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from tidegate.errors import FencedInstanceId, KafkaError, RebalanceInProgress, StoreUnavailable, UnknownMemberId
from tidegate.groups.model import GroupState, JoinRefused, Synced


class Again(Enum):
    """The answer to a waiter whose parked request is no longer valid: enter it again."""

    AGAIN = "again"


AGAIN: Final = Again.AGAIN

CONVERTED: Final = "Converted"
"""The state that is reported of a group that became one of KIP-848 while requests waited."""
_ENTERED_ITEMS: Final = 3
"""Number of items that a reply of joins or syncs has before the status."""


class Opened(NamedTuple):
    """The generation that a join phase opened: the part common to every member's answer."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group at one version."""

    state: str
    generation: int
    version: int
    round: int
    protocol_type: str
    protocol: str
    leader: str
    assigned_generation: int
    due_ms: int

    @staticmethod
    def from_end_of(reply: Sequence[Any]) -> GroupStatus | None:
        """From the end of a reply of joins or syncs; None if they ended no other request's wait."""
        return GroupStatus.of(reply[_ENTERED_ITEMS:]) if len(reply) > _ENTERED_ITEMS else None

    @staticmethod
    def of(reply: Sequence[Any]) -> GroupStatus:
        """From the items of `groups/read_group_status` after its code."""
        state, generation, version, phase, protocol_type, protocol, leader, assigned, due_ms = reply
        return GroupStatus(
            state.decode(),
            generation,
            version,
            phase,
            protocol_type.decode(),
            protocol.decode(),
            leader.decode(),
            assigned,
            due_ms,
        )


@dataclass(slots=True, eq=False)
class Waiter:
    """One parked request: the member, and the generation (and phase) in which it entered."""

    member_id: str
    instance_id: str | None
    generation: int
    round: int
    """The join phase it waits for; -1 for a sync."""
    answer: asyncio.Future[Opened | Synced | Again]
    checked_version: int = -1

    def judge(self, status: GroupStatus, record: bytes | None, owner: bytes | None, assignment: bytes | None) -> None:
        """Answer the request if this status decides it."""
        if record is None and status.state == CONVERTED:
            self.refuse_with(RebalanceInProgress())
        elif record is None:
            self._refuse(owner)
        elif self.round >= 0:
            self._judge_join(status, record)
        else:
            self._judge_sync(status, record, assignment)
        self.checked_version = status.version

    def _judge_join(self, status: GroupStatus, record: bytes) -> None:
        if status.generation > self.generation:
            if status.state == GroupState.PREPARING and status.leader == self.member_id:
                self._reply(AGAIN)  # its member list was deleted: this join counts for the next phase
            else:
                self._reply(Opened(status.generation, status.protocol_type, status.protocol, status.leader))
        elif from_json(record)["join_round"] != self.round:
            self._reply(AGAIN)

    def _judge_sync(self, status: GroupStatus, record: bytes, assignment: bytes | None) -> None:
        if status.assigned_generation == status.generation == self.generation:
            self._reply(Synced(assignment or b"", status.protocol_type, status.protocol))
        elif status.state == GroupState.PREPARING or status.generation != self.generation:
            self._fail(RebalanceInProgress())
        elif from_json(record)["sync_generation"] != self.generation:
            self._reply(AGAIN)

    def _refuse(self, owner: bytes | None) -> None:
        """The member was removed, or another one has its instance id."""
        fenced = owner is not None and owner.decode() != self.member_id
        error: KafkaError = FencedInstanceId() if fenced else UnknownMemberId()
        self._fail(JoinRefused(error, self.member_id if fenced else "") if self.round >= 0 else error)

    def refuse_with(self, error: KafkaError) -> None:
        """Fail the request with an error that its status does not give."""
        self._fail(JoinRefused(error, self.member_id) if self.round >= 0 else error)

    def _reply(self, answer: Opened | Synced | Again) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def unavailable(self, error: StoreUnavailable) -> None:
        """Fail the request: the store has been unavailable for too long."""
        self._fail(error)
