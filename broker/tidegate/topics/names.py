"""Topic names: Kafka's rules, internal topics, collisions."""

from __future__ import annotations

import re
from typing import Final

from tidegate.errors import InvalidRequest, InvalidTopic

NAME_LENGTH_MAX: Final = 249
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
"""Kafka's internal topics: clients neither create nor write them."""

METADATA_TOPIC: Final = "__cluster_metadata"
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_legal(name: str) -> bool:
    """Whether Kafka allows the name (Topic.java)."""
    return name not in (".", "..") and len(name) <= NAME_LENGTH_MAX and _LEGAL.fullmatch(name) is not None


def check(name: str) -> None:
    """Check a name by Kafka's rules. Raises InvalidTopic."""
    if is_legal(name):
        return
    if not name:
        raise InvalidTopic("topic name is empty")
    if name in (".", ".."):
        raise InvalidTopic(f"topic name cannot be {name!r}")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopic(f"topic name is longer than {NAME_LENGTH_MAX} characters")
    raise InvalidTopic("topic name has characters other than letters, digits, '.', '_' and '-'")


def check_creatable(name: str) -> None:
    """Check a name by Kafka's rules; internal topics are refused too. Raises InvalidTopic, InvalidRequest."""
    check(name)
    if name == METADATA_TOPIC:
        raise InvalidRequest(f"{name!r} is the log of Kafka's controllers: nobody can create it")
    if name in INTERNAL:
        raise InvalidTopic(f"{name!r} is an internal topic: clients cannot create it")


def check_changeable(name: str) -> None:
    """Raises InvalidTopic for internal topics, which the brokers alone write and change."""
    if name in INTERNAL:
        raise InvalidTopic(f"{name!r} is an internal topic: clients cannot change it")


def plain(name: str) -> str:
    """The key under which names that differ only by . and _ collide; "" if the name has neither."""
    plain_name = name.replace(".", "_")
    return plain_name if "_" in plain_name else ""
