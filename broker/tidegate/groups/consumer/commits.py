"""Commits and fetches of offsets by members of consumer groups, which name their member epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tidegate.errors import CoordinatorNotAvailable, IllegalGeneration, KafkaError, UnknownMemberId
from tidegate.groups.commit_answers import Prove, hand_out_proved
from tidegate.groups.commits import (
    WITHOUT_LEASE,
    Commit,
    OnCode,
    add_record_commits,
    commit_times_ms,
    is_large,
    sent_again,
)
from tidegate.groups.consumer.coordinator import ConsumerGroups
from tidegate.groups.consumer.errors import OtherGroupType, StaleMemberEpoch
from tidegate.groups.consumer.stored import EPOCH_TYPES, load_member
from tidegate.groups.consumer.update import EXPIRY_DUE
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store

COMMIT_CONSUMER_OFFSETS = Script("groups/commit_consumer_offsets")
COMMIT_WHILE_FREE = COMMIT_CONSUMER_OFFSETS.refused_when_full()

_TRIES_MAX: Final = 5

ExpireStreams = Callable[[GroupKeys, Callable[[object], None]], None]
"""Apply what is overdue in a streams group, then call back with an answer or an error."""


class ConsumerCommits:
    """Commits by members of groups with member epochs: each is sent at once, so a fetch behind it sees it."""

    def __init__(
        self,
        store: Store,
        groups: ConsumerGroups,
        lease_ends_ms: Callable[[], int] | None = None,
        prove: Prove | None = None,
    ) -> None:
        self._store, self._groups, self._prove = store, groups, prove
        self.lease_ends_ms = lease_ends_ms or (lambda: WITHOUT_LEASE)

    def commit(
        self,
        keys: GroupKeys,
        commit: Commit,
        knows_epochs: bool,
        on_code: OnCode,
        expire_streams: ExpireStreams | None = None,
        tries: int = 0,
        times_ms: tuple[int, int] | None = None,
    ) -> None:
        """Store a commit. `on_code` gets a code or OTHER_TYPE; NONE once the commit is durable.

        `times_ms` are the times of the first of several tries.
        """
        first_ms = times_ms or self.times_ms(keys, commit)

        def answered(reply: Any) -> None:
            if isinstance(reply, Failure):
                on_code(reply.error.code.value)
            elif reply[0] == 0 and self._prove is not None:
                hand_out_proved(self._prove, node, [(commit, on_code)], [0])
            elif reply[0] != EXPIRY_DUE:
                on_code(reply[0])
            elif tries == _TRIES_MAX:
                on_code(CoordinatorNotAvailable.code.value)  # deadlines pass faster than they are applied
            else:
                again = partial(self.commit, keys, commit, knows_epochs, on_code, expire_streams, tries + 1, first_ms)
                self._groups.submit(keys, None, partial(_expired, keys, again, on_code, expire_streams))

        node = self._store.node(keys.group)
        key_names = [keys.group, keys.consumers, keys.consumer_sessions, keys.revocations, keys.offsets]
        args: list[Arg] = [*(first_ms if times_ms is None else sent_again(times_ms))]
        args += (commit.generation, commit.member_id, int(not knows_epochs))
        args += [len(commit.entries) // 2, *commit.entries]
        add_record_commits([commit.records], key_names, args)
        script = COMMIT_WHILE_FREE if is_large(commit.entries) else COMMIT_CONSUMER_OFFSETS
        self._store.send_script(script, key_names, args, answered)

    def times_ms(self, keys: GroupKeys, commit: Commit) -> tuple[int, int]:
        """When the lease ends, and when the commit came."""
        return commit_times_ms(self._store, keys.group, self.lease_ends_ms, commit.arrived_s)


def _expired(
    keys: GroupKeys,
    commit_again: Callable[[], None],
    on_code: OnCode,
    expire_streams: ExpireStreams | None,
    answer: object,
) -> None:
    """What was overdue is applied, by the part that has groups of this type."""
    if isinstance(answer, OtherGroupType) and expire_streams is not None:
        expire_streams(keys, partial(_expired, keys, commit_again, on_code, expire_streams))
    elif isinstance(answer, KafkaError):
        on_code(answer.code.value)
    else:
        commit_again()


async def check_fetching_member(store: Store, keys: GroupKeys, member_id: str, member_epoch: int) -> None:
    """Check the member that fetches offsets, if the group has member epochs.

    Raises UnknownMemberId, StaleMemberEpoch (IllegalGeneration for a classic member), StoreUnavailable.
    """
    kind, record = await read_in_order(
        store, store.command, ("HGET", keys.group, "type"), ("HGET", keys.consumers, member_id)
    )
    if kind is None or kind.decode() not in EPOCH_TYPES:
        return
    if record is None:
        raise UnknownMemberId(f"{member_id!r} is not a member of the group")
    member = load_member(member_id, record)
    if member.epoch != member_epoch:
        error = StaleMemberEpoch if member.classic is None else IllegalGeneration
        raise error(f"the member epoch is {member.epoch}, not {member_epoch}")
