"""Planted bugs: one deliberate change each, in the text of scripts or of the waiting loop. The model must find all.

A change is an exact replacement that must match once, so no bug is planted that is not there.
"""

from __future__ import annotations
import __future__

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.model.network import forget_scripts
from tests.support.includes import replaced_include
from tidegate.groups.heartbeat_snapshots import HeartbeatSnapshots
from tidegate.groups.heartbeats import Heartbeats
from tidegate.groups.session_renewals import SessionRenewals
from tidegate.groups.waiting import GroupWaits
from tidegate.store import scripts
from tidegate.store.subscription_proof import SubscriptionProof


@dataclass(frozen=True, slots=True)
class InScript:
    """A replacement in one file of redis_scripts/."""

    name: str
    old: str
    new: str

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with replaced_include(self.name, replaced(scripts.read(self.name), self.old, self.new)):
            yield


@dataclass(frozen=True, slots=True)
class InMethod:
    """A replacement in one method of the brokers."""

    owner: type
    name: str
    old: str
    new: str

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        whole = self.owner.__dict__[self.name]
        source = replaced(textwrap.dedent(inspect.getsource(whole)), self.old, self.new)
        code = compile(source, f"<{self.name} with a bug>", "exec", __future__.annotations.compiler_flag)
        made: dict[str, Any] = {}
        exec(code, sys.modules[self.owner.__module__].__dict__, made)
        setattr(self.owner, self.name, made[self.name])
        try:
            yield
        finally:
            setattr(self.owner, self.name, whole)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    name: str
    changes: tuple[InScript | InMethod, ...]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(change.planted())
            forget_scripts()
            yield
        forget_scripts()


def replaced(source: str, old: str, new: str) -> str:
    """`source` with its one `old` replaced. Raises ValueError where there is none, or more than one."""
    if source.count(old) != 1:
        raise ValueError(f"{source.count(old)} places, not one, are {old!r}")
    return source.replace(old, new)


MUTATIONS: Final = (
    Mutation(
        "sync accepted at a stale generation",
        (
            InScript(
                "groups/sync_group",
                "if tonumber(generation) ~= group.generation and",
                "if tonumber(generation) > group.generation and",
            ),
        ),
    ),
    Mutation(
        "heartbeat accepted at a stale generation",
        (InScript("groups/heartbeat", "if ARGV[at + 1] ~= hash[2] and not", "if false and not"),),
    ),
    Mutation(
        "commit without the generation check",
        (
            InScript(
                "groups/commit_offsets",
                "if generation ~= group.generation and not",
                "if false and not",
            ),
        ),
    ),
    Mutation(
        "generation starts again when the group empties",
        (
            InScript(
                "lib/join_phase",
                'state.put(group, "elected", "")',
                'state.put(group, "elected", "") state.put(group, "generation", 0)',
            ),
        ),
    ),
    Mutation(
        "a lost lease removes the member",
        (
            InScript(
                "lib/expire_overdue",
                "return lose_lease(group, member_id, member) end",
                'remove_member(group, member_id, member, "member_expired", { cause = "session_timed_out" }) '
                'return after_removal(group, "session_timed_out", member_id, member) end',
            ),
        ),
    ),
    Mutation(
        "leases are not renewed",
        (InScript("groups/renew_parked", "sessions.set(group, scores, earliest)\nfinish(group)", "finish(group)"),),
    ),
    Mutation(
        "completion is not checked after a leave",
        (
            InScript(
                "groups/leave_group",
                "elseif group.state == STATE.PREPARING then\n  join_phase.complete_if_all_joined(group)\nend",
                "end",
            ),
        ),
    ),
    Mutation(
        "the sync timer is not armed",
        (
            InScript(
                "lib/join_phase",
                'state.put(group, "sync_deadline", '
                "group.change.at + math.max(tallies.max_rebalance_timeout(group), 1))",
                "",
            ),
        ),
    ),
    Mutation(
        "a static restart does not fence",
        (InScript("lib/static_member", 'redis.call("HDEL", keys.members, old_id)', ""),),
    ),
    Mutation(
        "a second sync of the leader overwrites",
        (
            InScript(
                "groups/sync_group",
                "if group.state == STATE.STABLE then return answer_late(member_id, record) end",
                "if group.state == STATE.STABLE and group.leader ~= member_id then "
                "return answer_late(member_id, record) end",
            ),
        ),
    ),
    Mutation(
        "wake-ups are not sent, and nobody polls",
        (
            InScript("lib/waiters", "if not (change.waking or change.notifying) then return end", "do return end"),
            InMethod(
                GroupWaits,
                "_poll_group",
                "wait_ms = min(due_ms, self._poll_ms) if due_ms >= 0 else self._poll_ms",
                "wait_ms = 3_600_000",
            ),
        ),
    ),
    Mutation(
        "the heartbeat of a removed member is taken",
        (
            InScript("groups/heartbeat", "if not record then return unknown_member(group) end", ""),
            InScript("groups/heartbeat", "match(records[i],", """match(records[i] or '{"session_timeout_ms":6000',"""),
        ),
    ),
    Mutation(
        "the token of a join is not honoured",
        (InScript("groups/join_group", "if known and known.join_token == join.token then", "if false then"),),
    ),
    Mutation(
        "the first sync counts for all",
        (
            InScript(
                "lib/note_synced",
                'state.put(group, "awaiting_sync", group.awaiting_sync - 1)',
                'state.put(group, "awaiting_sync", 0)',
            ),
        ),
    ),
    Mutation(
        "members are not notified of a rebalance",
        (InScript("lib/rebalance", "if group.state ~= STATE.EMPTY then waiters.notify_members(group) end", ""),),
    ),
    Mutation(
        "a reply is used after a newer message",
        (
            InMethod(
                Heartbeats,
                "_reply",
                "snapshot = heartbeats.snapshot",
                "snapshot = self.snapshots.begin(heartbeats.keys)",
            ),
        ),
    ),
    Mutation(
        "the proof of the subscription has no end",
        (InMethod(SubscriptionProof, "_on_message", "sent_s + PROOF_S)", "sent_s + 3_600)"),),
    ),
    Mutation(
        "snapshots outlive the connection of messages",
        (
            InMethod(SubscriptionProof, "_lose", "self._on_lost()", "pass"),
            InMethod(SubscriptionProof, "_on_message", "self._on_lost()", "pass"),
            InMethod(HeartbeatSnapshots, "_on_group_change", "self.discard_all()", "pass"),
        ),
    ),
    Mutation(
        "answered heartbeats renew nothing",
        (InMethod(SessionRenewals, "_take", "self._send(renewals)", "pass"),),
    ),
)
