"""Heartbeats that brokers answered from their snapshots: each must be right, or not wrong for longer than promised.

Redis is asked at the very moment of the answer. Where it would answer otherwise, the change must be one that was
published less than PROOF_S ago and is on its way, or one whose message was lost: the next renewal corrects it. The
member then counts as in contact: a broker that was well renews its session, so it may not expire early.
"""

from __future__ import annotations

from typing import Final

from tests.model.network import Server
from tests.model.world import Broker, World
from tidegate.groups.heartbeat_snapshots import MemberSnapshot
from tidegate.groups.session_renewals import RENEWAL_INTERVAL_S, RENEWED_AGAIN_S
from tidegate.store.subscription_proof import PROOF_S

RENEWED_MS: Final = round(RENEWAL_INTERVAL_S * 1000) + 25
"""After a renewal is due, by when a broker that is well has made it."""
LEFT_MS: Final = 1_000
"""Of the session at least, when a heartbeat is answered from a snapshot."""


class AnsweredHeartbeats:
    """All such answers of one life."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._answered: dict[str, list[tuple[Broker, int, int]]] = {}
        self.count = 0

    def see(self, world: World, broker: Broker, snapshot: MemberSnapshot) -> None:
        """A broker answered NONE just now."""
        self.count += 1
        member_ref, keys = snapshot.member_ref, world.keys
        (state, generation), known, owner, deadline = self._server.ask(
            ["HMGET", keys.group, "state", "generation"],
            ["HEXISTS", keys.members, member_ref.member_id],
            ["HGET", keys.instances, member_ref.instance_id or ""],
            ["ZSCORE", keys.sessions, member_ref.member_id],
        )
        right = known and state != b"PreparingRebalance" and int(generation or -1) == member_ref.generation
        if right and member_ref.instance_id is not None:
            right = owner == member_ref.member_id.encode()
        if not right:
            self._judge_stale(world, broker, snapshot)
            return
        assert float(deadline) - world.now_ms >= LEFT_MS, "a heartbeat was answered although its session is at its end"
        if world.is_well(broker):
            waits_s = max(0.0, snapshot.renewed_s + RENEWED_AGAIN_S - world.loop.time())
            renewed_ms = world.now_ms + round(waits_s * 1000) + RENEWED_MS
            self._answered.setdefault(member_ref.member_id, []).append((broker, world.now_ms, renewed_ms))

    def _judge_stale(self, world: World, broker: Broker, snapshot: MemberSnapshot) -> None:
        if world.network.missed_s.get(broker.name, -1.0) >= snapshot.confirmed_s:
            return
        stale_s = world.loop.time() - world.network.changed_s
        (messages,) = broker.store.lanes("push")
        assert messages.messages_under_way, "a heartbeat was answered as before a message that had arrived"
        assert world.network.changed_s >= snapshot.confirmed_s, "a heartbeat was answered after a change not published"
        assert stale_s < PROOF_S, f"a heartbeat was answered from a snapshot {stale_s:.3f} s behind"

    def last_ms(self, member_id: str, at_ms: int) -> int:
        """The last answer before `at_ms` by a broker that was well until it had renewed the session; 0 for none."""
        last_ms = 0
        for broker, answered_ms, renewed_ms in self._answered.get(member_id, ()):
            disturbed = any(answered_ms <= at <= renewed_ms for at in broker.disturbed_ms)
            if renewed_ms <= at_ms and not disturbed:
                last_ms = max(last_ms, answered_ms)
        return last_ms
