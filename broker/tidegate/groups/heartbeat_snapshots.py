"""Which heartbeats Redis would answer with NONE now, as far as this broker's subscriptions show.

A member enters its group's snapshot when the heartbeat script answered it with NONE. Every change of a group after
which a member's heartbeat may be answered otherwise is published by the script that makes the change (`lib/notify`), so
the snapshot is current while no message about the group arrives and the subscription is proven
(`store.subscription_proof`). Any message discards the whole snapshot of its group: what it contains is not used.

A script's reply and a message arrive on two connections. What a reply reports is therefore taken only if no message
about the group arrived since the script was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.model import MemberRef
from tidegate.memory import shares_of
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store
from tidegate.store.subscription_proof import SubscriptionProof

_MEMBER_BYTES: Final = 600
"""Memory of a member beside its names."""
_SESSION_SHARE: Final = 2 / 3
_RENEWAL_S: Final = 0.15
"""Within which a heartbeat that was answered has renewed its session: a batch goes out every 75 ms."""


def confirmed_for_s(timeout_s: float) -> float:
    """How long a session of that timeout counts as far from its deadline once it is confirmed. Both in seconds."""
    return max(0.0, min(timeout_s * _SESSION_SHARE, timeout_s - _RENEWAL_S))


class GroupSnapshot:
    """The members of one group whose heartbeats are answered with NONE. `is_current` ends with the first message.

    `confirmed_for_s` is for the shortest session timeout that its members may have. Groups with member epochs have a
    `heartbeat_interval_ms` (0: the broker's setting) and the `topics_version` for which they are at rest.
    """

    __slots__ = (
        "confirmed_for_s", "heartbeat_interval_ms", "held_bytes", "is_current", "keys", "members", "topics_version"
    )  # fmt: skip

    def __init__(self, keys: GroupKeys, confirmed_for_s: float) -> None:
        self.keys, self.confirmed_for_s = keys, confirmed_for_s
        self.heartbeat_interval_ms, self.topics_version = 0, -1
        self.members: dict[str, MemberSnapshot] = {}
        self.held_bytes = keys.held_bytes
        self.is_current = True


class MemberSnapshot:
    """One member of a snapshot; `confirmed_s` is when the last script that found it was sent."""

    __slots__ = ("confirmed_s", "group", "is_current", "is_renewing", "member_ref", "renewed_s")

    def __init__(self, group: GroupSnapshot, member_ref: MemberRef, confirmed_s: float) -> None:
        self.group, self.member_ref, self.confirmed_s = group, member_ref, confirmed_s
        self.is_current = True
        self.is_renewing = False
        """Whether its renewal waits for a batch."""
        self.renewed_s = confirmed_s
        """When its last renewal was sent."""

    @property
    def held_bytes(self) -> int:
        """Its memory, about."""
        return _MEMBER_BYTES + len(self.member_ref.member_id) + len(self.member_ref.instance_id or "")


class HeartbeatSnapshots:
    """The snapshots of one broker, up to a share of memory: the oldest are discarded.

    `clock` is monotonic, in seconds; `coordinates` is as for `Heartbeats`.
    """

    def __init__(self, store: Store, clock: Callable[[], float], coordinates: Callable[[int], bool]) -> None:
        self._store, self._clock, self._coordinates = store, clock, coordinates
        self._confirmed_for_s = confirmed_for_s(store.settings.group_min_session_timeout_ms / 1000)
        self._groups: dict[str, GroupSnapshot] = {}
        self._held_bytes, self._bytes_max = 0, shares_of(store.settings.memory_max).heartbeats
        self.proof = SubscriptionProof(store, self.discard_all, clock)

    async def start(self) -> None:
        """Subscribe to the changes of all groups; nothing is answered from a snapshot before. Raises TimeoutError."""
        if self._store.is_sharded:
            return
        await subscribe_group_changes(self._store, self._on_group_change)
        await self.proof.start()

    def close(self) -> None:
        """Unsubscribe and discard all snapshots."""
        if self._store.is_sharded:
            return
        self.proof.close()
        unsubscribe_group_changes(self._store, self._on_group_change)
        self.discard_all()

    # -- heartbeats

    def now_s(self) -> float:
        """The time by the clock of the snapshots."""
        return self._clock()

    def find(self, keys: GroupKeys, member_ref: MemberRef) -> MemberSnapshot | None:
        """The snapshot of this member in this generation, current or not."""
        group = self._groups.get(keys.ref)
        if group is None:
            return None
        member = group.members.get(member_ref.member_id)
        return member if member is not None and member.member_ref == member_ref else None

    def answers(self, member: MemberSnapshot) -> bool:
        """Whether the member's heartbeat is answered with NONE now."""
        now_s = self._clock()
        return (
            now_s < self.proof.proven_until_s
            and member.group.is_current
            and member.is_current
            and now_s < member.confirmed_s + member.group.confirmed_for_s
        )

    # -- scripts

    def begin(self, keys: GroupKeys) -> GroupSnapshot | None:
        """Before a script is sent: the snapshot for its reply, then `end`; None where the script has to answer.

        It has to while nothing is proven, and where another broker coordinates the group: when this broker dies, only
        members of the groups that it coordinates get a session grace in place of the renewals that died with it.
        """
        if self._clock() >= self.proof.proven_until_s:
            return None
        if not self._coordinates(keys.shard_keys.shard):
            self._discard(keys.ref)
            return None
        group = self._groups.get(keys.ref)
        if group is None:
            group = self._groups[keys.ref] = GroupSnapshot(keys, self._confirmed_for_s)
            self._held_bytes += group.held_bytes
        return group

    def confirm(self, group: GroupSnapshot, member_ref: MemberRef, sent_s: float) -> None:
        """A script sent at `sent_s`, after `begin` returned `group`, answered the member's heartbeat with NONE."""
        if not group.is_current:
            return
        member = group.members.get(member_ref.member_id)
        if member is not None and member.member_ref == member_ref:
            member.confirmed_s = sent_s
            return
        if member is not None:
            self._discard_member(member)
        member = group.members[member_ref.member_id] = MemberSnapshot(group, member_ref, sent_s)
        group.held_bytes += member.held_bytes
        self._held_bytes += member.held_bytes
        self._groups[group.keys.ref] = self._groups.pop(group.keys.ref)
        while self._held_bytes > self._bytes_max:
            self.discard(next(iter(self._groups.values())).keys)

    def end(self, group: GroupSnapshot) -> None:
        """The script's reply is processed: a snapshot without members is not kept."""
        if group.is_current and not group.members:
            self._discard(group.keys.ref)

    def refute(self, keys: GroupKeys, member_ref: MemberRef) -> None:
        """A script answered the member's heartbeat with an error."""
        member = self.find(keys, member_ref)
        if member is not None:
            self._discard_member(member)

    # -- changes

    def discard(self, keys: GroupKeys) -> None:
        """The group changed, or may have."""
        self._discard(keys.ref)

    def discard_all(self) -> None:
        """Messages may have been lost, or Redis refuses scripts."""
        for group in self._groups.values():
            group.is_current = False
        self._groups.clear()
        self._held_bytes = 0

    def _discard(self, ref: str) -> None:
        group = self._groups.pop(ref, None)
        if group is not None:
            group.is_current = False
            self._held_bytes -= group.held_bytes

    def _discard_member(self, member: MemberSnapshot) -> None:
        member.is_current = False
        del member.group.members[member.member_ref.member_id]
        member.group.held_bytes -= member.held_bytes
        self._held_bytes -= member.held_bytes

    def _on_group_change(self, payload: bytes | None) -> None:
        if payload is None:
            self.discard_all()
        else:
            self._discard(payload.rsplit(b":", 3)[0].decode())
