"""The call that stores a decision on a group with member epochs, if the group is still the one that was decided on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Final

from tidegate.groups.consumer.membership import Expired
from tidegate.groups.consumer.model import EpochGroup
from tidegate.groups.decision_queue import computed
from tidegate.groups.expire_and_retry import extend_sessions_after_outage
from tidegate.groups.identity import candidate
from tidegate.groups.model import GROUP_EVENTS_MAX
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

UPDATE_EPOCH_GROUP = Script("groups/update_epoch_group")

EXPIRY_DUE: Final = -100
STALE: Final = -101
TOO_EARLY: Final = -104


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How the groups of a type are stored.

    `configs` are the values that the decision assumed, as the script compares them; `min_interval_ms` must have passed
    since the last target if the decision has a new one. `partitions` counts those in a member's record and target,
    `names` the topic names of its subscription, of which the group's fields have those of all members.
    """

    type: str
    configs: str
    fields: Callable[[], Mapping[str, str]]
    record: Callable[[str], str]
    target: Callable[[str], str]
    session_timeout_ms: Callable[[str], int]
    partitions: Callable[[str], int]
    min_interval_ms: int = 0
    names: Callable[[str], int] = lambda _: 0


async def update_call(
    store: Store,
    keys: GroupKeys,
    broker: str,
    base: EpochGroup[Any, Any],
    group: EpochGroup[Any, Any],
    expired: Sequence[Expired],
    session_timeout_ms: int,
    form: StoredForm,
) -> tuple[list[str], list[Arg]]:
    """KEYS and ARGV of the script; `base` is the group as it was read, `group` what the decision made of it."""
    shard = keys.shard_keys
    key_names = [keys.group, keys.consumers, keys.targets, keys.consumer_sessions, keys.revocations]
    key_names += [shard.groups, shard.deadlines, shard.events, keys.configs]
    group.write_id = token_hex(8) if group.is_changed else base.write_id
    new_id = "" if base.own_id else candidate(keys)
    group.own_id = base.own_id or new_id.partition(" ")[0]
    args: list[Arg] = [keys.ref, shard.wake, GROUP_EVENTS_MAX, broker]
    args += [base.own_id, base.version, base.write_id, group.write_id, new_id, session_timeout_ms, form.configs]
    args += [0 if group.target_epoch == base.target_epoch else form.min_interval_ms, form.type]
    args.append(-1 if base.was_classic else len(base.members))
    for one in await computed(_sizes(group, form), partial(_lists, group, expired, form)):
        args += [len(one), *one]
    extend_sessions_after_outage(store, keys, consumers=True)
    return key_names, args


def _sizes(group: EpochGroup[Any, Any], form: StoredForm) -> Iterator[int]:
    for member_id in group.dirty | group.dirty_targets:
        yield 1 + form.partitions(member_id) // 10
    if group.is_changed:
        for member_id in group.members:
            yield form.names(member_id) // 10


def _lists(group: EpochGroup[Any, Any], expired: Sequence[Expired], form: StoredForm) -> list[list[Arg]]:
    """The counted lists of the script, in its order."""
    fields: list[Arg] = []
    if group.is_changed:
        for name, value in form.fields().items():
            fields += (name, value)
    records: list[Arg] = []
    for member_id in sorted(group.dirty):
        records += (member_id, form.record(member_id))
    targets: list[Arg] = []
    for member_id in sorted(group.dirty_targets):
        targets += (member_id, form.target(member_id))
    timers: list[Arg] = []
    for member_id, timeout_ms in group.revocations.items():
        timers += (member_id, -1 if timeout_ms is None else timeout_ms)
    renewed: list[Arg] = []
    for member_id in sorted(group.renewed):
        renewed += (member_id, form.session_timeout_ms(member_id))
    return [
        [one.member_id for one in expired],
        fields,
        records,
        targets,
        sorted(group.removed),
        renewed,
        timers,
        [value for item in sorted(group.rejoins.items()) for value in item],
        [value for event in group.events for value in event.values],
    ]


def expired_members(reply: Sequence[bytes]) -> list[Expired]:
    """The members in an EXPIRY_DUE reply, each with the deadline that passed."""
    return [
        Expired(member_id.decode(), f"{kind.decode()}_timed_out")
        for kind, member_id in zip(reply[::2], reply[1::2], strict=True)
    ]
