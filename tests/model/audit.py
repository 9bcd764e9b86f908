"""What scripts did, in the order in which Redis ran them, and whether each removal and acceptance was right.

A script may be run and its answer lost, so this is the only place that knows which commit came last and which member
sent a request when. Checked: nothing of an older generation or of a removed member is accepted (P3, I9, I18, I19);
a member is removed only because it left, was silent, or came late (P5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.answered import AnsweredHeartbeats
from tests.model.network import Executed
from tests.model.stored import Stored
from tests.model.world import Request, World
from tidegate.groups import waiting

NONE, REBALANCE_IN_PROGRESS, FULL = 0, 27, 81
SLACK_MS = 100
"""Beyond the poll of a waiter; until then it may wait though the group moved on."""


@dataclass(slots=True)
class Wait:
    """A request of a member that is parked at a broker."""

    request: Request
    since_ms: int


@dataclass(slots=True)
class Audit:
    """The evidence about one group."""

    world: World = field(init=False)
    known_replies: set[str] = field(default_factory=set)
    """Member ids that clients have got."""
    gone: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    """Member ids, and instances, whose leaving was accepted."""
    evicted: set[str] = field(default_factory=set)
    signs_ms: dict[str, list[int]] = field(default_factory=dict)
    timeout_ms: dict[str, int] = field(default_factory=dict)
    """The shortest session timeout that each member asked for."""
    tokens: set[str] = field(default_factory=set)
    waits: dict[str, list[Wait]] = field(default_factory=dict)
    committed: dict[str, str] = field(default_factory=dict)
    phase_began_ms: int = 0
    first_phase: bool = True
    opened_ms: int = 0
    answered: AnsweredHeartbeats = field(init=False)

    # -- scripts

    def see(self, done: Executed) -> None:
        """One script ran."""
        judge = getattr(self, "_" + done.script.rpartition("/")[2], None)
        if judge is not None:
            judge(done)

    def _join_group(self, done: Executed) -> None:
        for at, answer in enumerate(done.reply[2]):
            self._judge_join(done, done.args[9 + 12 * at :], answer)

    def _judge_join(self, done: Executed, args: Sequence[str], answer: Sequence[Any]) -> None:
        code, member_id = answer[0], answer[1].decode()
        given_id, instance_id, token, reason, timeout_ms = *args[1:4], args[9], int(args[11].split()[0])
        if code == FULL:
            self.evicted.add(given_id)
            self.evicted.add(instance_id)
        if code != NONE:
            return
        self._accept(member_id, "join")
        self.timeout_ms[member_id] = min(timeout_ms, self.timeout_ms.get(member_id, timeout_ms))
        if token in self.tokens:  # the same join, run again: it is answered as before, and holds nothing again
            return
        self.tokens.add(token)
        if answer[2] == b"parked":
            self._parked(done, member_id, reason)
        elif not given_id:
            self._sign(member_id, done.now_ms)

    def _sync_group(self, done: Executed) -> None:
        for at, answer in enumerate(done.reply[2]):
            if answer[0] != NONE:
                continue
            member_id, generation = done.args[6 + 5 * at], int(done.args[8 + 5 * at])
            self._accept(member_id, "sync")
            assert generation >= done.generation, "I9: a sync of an older generation was accepted"
            if answer[1] == b"parked":
                self._parked(done, member_id, f"sync {member_id}")

    def _heartbeat(self, done: Executed) -> None:
        for at, code in enumerate(done.reply[1:]):
            member_id, generation = done.args[1 + 3 * at], int(done.args[2 + 3 * at])
            if code in (NONE, REBALANCE_IN_PROGRESS):
                self._accept(member_id, "heartbeat")
                assert generation == done.generation, "I9: a heartbeat of another generation was accepted"
                self._sign(member_id, done.now_ms)

    def _leave_group(self, done: Executed) -> None:
        for code, member_id, instance_id in zip(done.reply[1:], done.args[7::3], done.args[8::3], strict=True):
            if code == NONE:
                self.left.add(member_id or instance_id)

    def _commit_offsets(self, done: Executed) -> None:
        assert int(done.args[7]) == len(done.reply) - 1, "the arguments of commit_offsets have another layout"
        at = 8
        for code in done.reply[1:]:
            generation, member_id, count = int(done.args[at]), done.args[at + 1], int(done.args[at + 4])
            entries = done.args[at + 5 : at + 5 + 2 * count]
            at += 5 + 2 * count
            if code != NONE:
                continue
            if generation >= 0:
                self._accept(member_id, "commit")
                assert generation == done.generation, "P3, I9: a commit of another generation was accepted"
                assert done.state in ("PreparingRebalance", "Stable"), "C18: a commit between join and sync"
                self._sign(member_id, done.now_ms)
            else:
                assert done.state in ("", "Empty"), "C16: a simple commit into a group with members"
            for name, entry in zip(entries[::2], entries[1::2], strict=True):
                self.committed[name] = entry.split(",")[0].removeprefix('{"offset":')

    def _accept(self, member_id: str, what: str) -> None:
        if what == "join" and member_id not in self.known_replies:
            self.gone.discard(member_id)  # a join run again, too late: no client has got this id, so it is a new one
        assert member_id not in self.gone, f"I18, I19: a {what} of a removed member was accepted"

    def _sign(self, member_id: str, now_ms: int) -> None:
        self.signs_ms.setdefault(member_id, [0]).append(now_ms)

    def _parked(self, done: Executed, member_id: str, entry: str) -> None:
        self._sign(member_id, done.now_ms)
        for request in self.world.requests:
            if request.broker.name == done.broker and request.entry == entry:
                waits = self.waits.setdefault(member_id, [])
                waits[:] = [wait for wait in waits if wait.request is not request]
                if self.world.is_well(request.broker):
                    waits.append(Wait(request, done.now_ms))

    # -- what happened to members

    def compare(self, now: Stored, before: Stored) -> None:
        """Judge the events since the last reading."""
        parted: set[str] = set()
        for event in now.events:
            kind, member_id, at_ms = event["kind"], event["member"], int(event["time"])
            if kind in ("member_joined", "member_replaced"):
                self.gone.discard(member_id)  # judged as it was accepted
            if kind == "rebalance_started":
                self.phase_began_ms = at_ms
            elif kind == "barrier_joined":
                self.opened_ms, self.first_phase = at_ms, False
            elif kind == "emptied":
                self.first_phase = True
            elif kind == "lease_lost":
                assert not self._is_held(member_id, at_ms), "R8: a lease was lost though its broker was well"
            elif kind == "member_replaced":
                replaced = event["detail"].rpartition(" ")[2]
                parted.add(replaced)
                self.gone.add(replaced)
            elif kind in ("member_expired", "member_left", "member_removed", "member_evicted"):
                parted.add(member_id)
                self.gone.add(member_id)
                self._judge_removal(kind, event, before.members.get(member_id))
        missing = before.members.keys() - now.members.keys()
        assert missing <= parted, f"P5: {missing - parted} went without a trace"
        assert now.offsets == self.committed, "P3, I20, I21: what is committed is not what was accepted"

    def _judge_removal(self, kind: str, event: dict[str, str], record: dict[str, object] | None) -> None:
        member_id, at_ms, cause, instance_id = event["member"], int(event["time"]), event["cause"], event["instance_id"]
        if kind in ("member_left", "member_removed"):
            assert {member_id, instance_id} & self.left, f"P5: {member_id} never left"
        elif kind == "member_evicted":
            assert {member_id, instance_id} & self.evicted, f"P5: {member_id} was not refused"
        elif cause == "session_timed_out":
            assert not self._is_held(member_id, at_ms), f"P5: {member_id} expired while it waited"
            silent_ms = at_ms - self._last_sign_ms(member_id, at_ms)
            slack_ms = waiting.POLL_MS + SLACK_MS
            assert silent_ms + slack_ms >= self.timeout_ms[member_id], (
                f"P5: {member_id} expired after {silent_ms} ms of silence"
            )
        elif record is not None:
            self._judge_lateness(cause, at_ms, int(str(record["joined_at"])), int(str(record["rebalance_timeout_ms"])))

    def _judge_lateness(self, cause: str, at_ms: int, joined_ms: int, timeout_ms: int) -> None:
        if cause == "did_not_rejoin" and not self.first_phase and joined_ms < self.phase_began_ms:
            assert at_ms - self.phase_began_ms >= timeout_ms, "P5: dropped before its time to rejoin"
        elif cause == "did_not_sync":
            assert at_ms - self.opened_ms >= timeout_ms, "P5: dropped before its time to sync"

    def _is_held(self, member_id: str, at_ms: int) -> bool:
        """Whether a broker that was well all the time had a request of the member."""
        return any(wait.since_ms < at_ms <= self._held_until(wait) for wait in self.waits.get(member_id, ()))

    def _held_until(self, wait: Wait) -> int:
        request = wait.request
        ended_ms = request.ended_ms if request.ended_ms >= 0 else self.world.now_ms
        return min([ended_ms, *(at for at in request.broker.disturbed_ms if at >= wait.since_ms)])

    def _last_sign_ms(self, member_id: str, at_ms: int) -> int:
        waits = [wait for wait in self.waits.get(member_id, ()) if wait.since_ms <= at_ms]
        awaited = [min(self._held_until(wait), at_ms) for wait in waits]
        signs = [sign_ms for sign_ms in self.signs_ms.get(member_id, ()) if sign_ms <= at_ms]
        return max([self.answered.last_ms(member_id, at_ms), *signs, *awaited])
