"""The memory that a group takes in a broker, about: so that what is cached and what a group may have is bounded."""

from __future__ import annotations

from typing import Any, Final

from tidegate.errors import GroupMaxSizeReached

_GROUP_BYTES: Final = 4_000
_MEMBER_BYTES: Final = 1_200
"""A member beside its texts and partitions, with its places in the group."""
_PARTITION_BYTES: Final = 200
"""One partition of a member, of a target, or of the group's owners."""
_TOPIC_BYTES: Final = 500
_TEXT_BYTES: Final = 160
"""A text beside its characters, with its place in a set or tuple."""
_CHARACTER_BYTES: Final = 4
"""Of a text that is not ASCII."""
TEXTS_BYTES_MAX: Final = 64 << 20
"""What the clients of a group's members may choose: ids, names, subscriptions (100,000 topic names have 18 MB)."""
_TEXTS: Final = (
    "member_id", "instance_id", "rack_id", "client_id", "client_host", "client_software", "assignor", "regex",
    "principal", "topics", "classic", "process_id", "endpoint", "client_tags",
)  # fmt: skip
"""Attributes of members of all types, and of their requests."""


def text_bytes(value: Any) -> int:
    """Memory of a text, of bytes, or of a set or tuple of them; None and numbers have none.

    It is the same at any time: `sys.getsizeof` grows when a string was encoded once.
    """
    if isinstance(value, str):
        return _TEXT_BYTES + len(value) * (1 if value.isascii() else _CHARACTER_BYTES)
    if isinstance(value, bytes):
        return _TEXT_BYTES + len(value)
    if isinstance(value, frozenset):
        together = "".join(value)
        return _TEXT_BYTES * len(value) + len(together) * (1 if together.isascii() else _CHARACTER_BYTES)
    if isinstance(value, tuple):
        return sum(map(text_bytes, value))
    return 0 if value is None or isinstance(value, int) else text_bytes(value.protocols)


def texts_bytes(member: Any) -> int:
    """Memory of what a member's client chose."""
    return sum(text_bytes(getattr(member, name, None)) for name in _TEXTS)


def check_size(group: Any, request: Any, known: Any = None) -> None:
    """Refuse a request that would make the group larger than every broker can hold; `known` is what it changes.

    Raises GroupMaxSizeReached.
    """
    added = 0
    for name in _TEXTS:
        new = getattr(request, name, None)
        if new is not None:
            added += text_bytes(new) - text_bytes(getattr(known, name, None))
    if added > 0 and group.texts_bytes + added > TEXTS_BYTES_MAX:
        raise GroupMaxSizeReached(f"the subscriptions of the group's members have more than {TEXTS_BYTES_MAX} bytes")


def partitions_bytes(count: int) -> int:
    """Memory of partitions that are held one by one."""
    return _PARTITION_BYTES * count


def group_bytes(members: int, topics: int, partitions: int) -> int:
    """Memory of a group beside what clients chose; `partitions` are those of all members and targets."""
    return _GROUP_BYTES + _MEMBER_BYTES * members + _TOPIC_BYTES * topics + partitions_bytes(partitions)
