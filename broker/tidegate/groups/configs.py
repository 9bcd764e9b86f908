"""Configs of groups, by Kafka's names: what may be set, and what holds where nothing is set.

They are stored by the group's id, and may be set before there is a group. Those of share groups are read by the scripts
that use them. The times of a KIP-848 group are copied into its hash, where its heartbeats find them.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from tidegate.errors import InvalidConfig, InvalidRequest
from tidegate.groups.group_index import group_of
from tidegate.groups.share.starting import LATEST, RESET_CONFIG, check_reset
from tidegate.list_configs import check_length
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

ALTER_CONFIGS = Script("groups/alter_configs")

_DIGITS_MAX: Final = 20
_SHOWN_MAX: Final = 100
"""Characters of a refused value in the error."""

Check = Callable[[str], None]
"""Raises InvalidConfig."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One config; `setting` is the broker's setting that holds if it is not set, or `default` its value."""

    name: str
    doc: str
    check: Check
    setting: str = ""
    default: str = ""
    is_number: bool = False
    group_type: str = ""
    """The only type of groups that it applies to; where it is empty, the name begins with it."""

    def default_value(self, settings: Settings) -> str:
        """The value where nothing is set."""
        return str(getattr(settings, self.setting)) if self.setting else self.default


def _between(name: str, lowest: int, highest: int) -> Check:
    def check(value: str) -> None:
        digits = value.strip(string.whitespace)  # what `int` removes; `strip` removes control characters too
        is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX
        if not (is_number and lowest <= int(digits) <= highest):
            raise InvalidConfig(f"{name} is a number from {lowest} to {highest}, not {value[:_SHOWN_MAX]!r}")

    return check


def _one_of(name: str, *values: str) -> Check:
    def check(value: str) -> None:
        if value not in values:
            raise InvalidConfig(f"{name} is one of {', '.join(values)}, not {value!r}")

    return check


def _check_dead_letter_topic(value: str) -> None:
    if value.strip().startswith("__"):
        raise InvalidConfig(f"{DEAD_LETTER_TOPIC} must not be an internal topic: {value!r}")


def _number(name: str, setting: str, lowest: int, highest: int, doc: str, default: str = "") -> GroupConfig:
    return GroupConfig(name, doc, _between(name, lowest, highest), setting, default, is_number=True)


def _choice(name: str, doc: str, *values: str) -> GroupConfig:
    return GroupConfig(name, doc, _one_of(name, *values), default=values[0])


SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPY: Final = "errors.deadletterqueue.copy.record.enable"
ROLLOUT_GRACE: Final = "tidegate.rollout.grace.ms"
TIMES: Final = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL, ROLLOUT_GRACE)
"""Configs that a KIP-848 group has in its hash."""

STREAMS_VALUES: Final = (
    "streams.session.timeout.ms",
    "streams.heartbeat.interval.ms",
    "streams.num.standby.replicas",
)
"""Configs that a streams group has in its hash."""
STREAMS_SESSION_TIMEOUT_MS: Final = 45_000
STREAMS_HEARTBEAT_INTERVAL_MS: Final = 5_000
SHARE_DELIVERY_COUNT_LIMIT: Final = 5
SHARE_RECORD_LOCK_DURATION_MS: Final = 30_000
SHARE_PARTITION_MAX_RECORD_LOCKS: Final = 2_000

BELOW: Final = (
    (HEARTBEAT_INTERVAL, SESSION_TIMEOUT),
    ("streams.heartbeat.interval.ms", "streams.session.timeout.ms"),
    ("share.heartbeat.interval.ms", "share.session.timeout.ms"),
)
"""Pairs whose first is below the second."""

CONFIGS: Final = {
    one.name: one
    for one in (
        _number(
            SESSION_TIMEOUT, "group_consumer_session_timeout_ms", 1_000, 3_600_000,
            "Session timeout of the members with group.protocol=consumer",
        ),
        _number(
            HEARTBEAT_INTERVAL, "group_consumer_heartbeat_interval_ms", 100, 600_000,
            "Heartbeat interval given to the members with group.protocol=consumer",
        ),
        _number(
            ASSIGNMENT_INTERVAL, "", 0, 15_000,
            "Shortest time between two target assignments of a group with group.protocol=consumer", "0",
        ),
        GroupConfig(
            ROLLOUT_GRACE, "Time for which the partitions of a member with group.protocol=consumer that left wait for "
            "a new member with its client id", _between(ROLLOUT_GRACE, 0, 3_600_000), default="0", is_number=True,
            group_type="consumer",
        ),
        _number(
            "streams.session.timeout.ms", "", 1_000, 3_600_000,
            "Session timeout of the members of a streams group", str(STREAMS_SESSION_TIMEOUT_MS),
        ),
        _number(
            "streams.heartbeat.interval.ms", "", 100, 600_000,
            "Heartbeat interval given to the members of a streams group", str(STREAMS_HEARTBEAT_INTERVAL_MS),
        ),
        _number(
            "streams.num.standby.replicas", "", 0, 2,
            "Standby tasks of each task with state, on other processes than the active one", "0",
        ),
        _number(
            "share.session.timeout.ms", "group_consumer_session_timeout_ms", 1_000, 3_600_000,
            "Session timeout of the group's members",
        ),
        _number(
            "share.heartbeat.interval.ms", "group_consumer_heartbeat_interval_ms", 100, 600_000,
            "Heartbeat interval given to the group's members",
        ),
        _number(
            "share.record.lock.duration.ms", "", 1_000, 3_600_000,
            "Time for which a member has the records that it acquired", str(SHARE_RECORD_LOCK_DURATION_MS),
        ),
        _number(
            "share.delivery.count.limit", "", 2, 25,
            "Deliveries of a record before it counts as failed", str(SHARE_DELIVERY_COUNT_LIMIT),
        ),
        _number(
            "share.partition.max.record.locks", "", 100, 10_000,
            "Maximum offsets from the first unfinished record of a partition to the last one in flight",
            str(SHARE_PARTITION_MAX_RECORD_LOCKS),
        ),
        GroupConfig(
            RESET_CONFIG, "Where a partition begins when the group first reads it: latest, earliest or "
            "by_duration:<ISO-8601 duration>", check_reset, default=LATEST,
        ),
        _choice(
            "share.isolation.level", "Whether records of open and aborted transactions are delivered",
            "read_uncommitted", "read_committed",
        ),
        _choice(
            "share.ordering", "Whether a record waits while an earlier one of its key is not finished", "none", "key"
        ),
        _number(
            "share.retry.backoff.ms", "", 0, 3_600_000,
            "Time after which a record comes back whose delivery failed; it doubles with each further delivery", "0",
        ),
        _number(
            "share.retry.backoff.max.ms", "", 1, 86_400_000,
            "The longest time after which a record comes back whose delivery failed", "60000",
        ),
        _choice(
            "share.deliver.at.enable", "Whether a record is not delivered before the time of its header "
            "tidegate.deliver.at, in ms since 1970", "false", "true",
        ),
        GroupConfig(
            DEAD_LETTER_TOPIC, "Topic that failed records are written to (KIP-1191); empty: none",
            _check_dead_letter_topic, group_type="share",
        ),
        GroupConfig(
            DEAD_LETTER_COPY, "Whether key and value of a failed record are written too",
            _one_of(DEAD_LETTER_COPY, "false", "true"), default="false", group_type="share",
        ),
        _choice("share.renew.acknowledge.enable", "Whether members may renew their locks (KIP-1222)", "true", "false"),
    )
}  # fmt: skip


def plan(changes: Sequence[tuple[str, bool, str | None]], *, replace: bool = False) -> tuple[dict[str, str], list[str]]:
    """The values to store and the names to delete, from (name, whether it is deleted, value).

    With `replace`, every config that is not named is deleted. Raises InvalidConfig, InvalidRequest.
    """
    stored: dict[str, str] = {}
    deleted: list[str] = []
    for name, is_deleted, value in changes:
        config = CONFIGS.get(name)
        if config is None:
            raise InvalidConfig(f"unknown group config {name!r}")
        if is_deleted:
            deleted.append(name)
        elif value is None:
            raise InvalidRequest(f"{name} has no value to set")
        else:
            check_length(value)
            config.check(value)
            stored[name] = value.strip()
    if replace:
        deleted = [name for name in CONFIGS if name not in stored]
    return stored, deleted


async def read(store: Store, keys: GroupKeys) -> dict[str, str]:
    """The configs that are set for a group id. Raises StoreUnavailable."""
    found: Mapping[bytes, bytes] = await store.command("HGETALL", keys.configs)
    return {name.decode(): value.decode() for name, value in found.items()}


def in_force(settings: Settings, kind: str, stored: Mapping[str, str]) -> dict[str, str]:
    """The configs of groups of a type, in order of name, each with its value in effect."""
    return {
        name: stored.get(name, config.default_value(settings))
        for name, config in sorted(CONFIGS.items())
        if (config.group_type or name.partition(".")[0]) == kind
    }


async def alter(
    store: Store, keys: GroupKeys, stored: Mapping[str, str], deleted: Sequence[str], *, validate_only: bool = False
) -> None:
    """Store and delete configs in one step. Raises InvalidConfig if they contradict others, StoreUnavailable."""
    args: list[Arg] = [keys.ref, token_hex(8), int(validate_only), keys.shard_keys.wake, len(BELOW)]
    for pair in BELOW:
        for name in pair:
            args += (name, CONFIGS[name].default_value(store.settings))
    args += (len(deleted), *deleted)
    for one in stored.items():
        args += one
    shard = keys.shard_keys
    names = [keys.configs, keys.group, keys.consumers, keys.consumer_sessions, shard.configured, shard.deadlines]
    (contradicted,) = await store.run(ALTER_CONFIGS, names, *args)
    if contradicted:
        lower, higher = BELOW[contradicted - 1]
        raise InvalidConfig(f"{lower} must be below {higher}")


async def configured_groups(store: Store, org: str) -> list[str]:
    """The group ids of an organisation that have configs, in order. Raises StoreUnavailable."""
    found: list[str] = []
    for shard in range(store.settings.coordinator_shards):
        names = await store.command("HKEYS", store.shard_keys(shard).configured)
        groups = (group_of(store, name.decode()) for name in names)
        found += [keys.group_id for keys in groups if keys.org == org]
    return sorted(found)
