"""The memory that a group takes in a broker, about: so that what is cached and what a group may have is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Final, Protocol

from tidegate.errors import GroupMaxSizeReached

_GROUP_BYTES: Final = 4_000
_MEMBER_BYTES: Final = 1_200
"""A member beside its texts and partitions, with its places in the group."""
_PARTITION_BYTES: Final = 200
"""One partition of a member, of a target, or of the group's owners."""
_TOPIC_BYTES: Final = 500
TEXTS_BYTES_MAX: Final = 64 << 20
"""What the clients of a group's members may choose: ids, names, subscriptions (100,000 topic names have 10 MB)."""


class Client(Protocol):
    """A member, or its request: the texts that every member has."""

    @property
    def member_id(self) -> str:
        """Of the member."""

    @property
    def rack_id(self) -> str | None:
        """Where it runs."""

    @property
    def client_id(self) -> str:
        """What its client calls itself."""

    @property
    def client_host(self) -> str:
        """Its address."""

    @property
    def client_software(self) -> str:
        """Name and version of its library."""


def client_bytes(client: Client) -> int:
    """Memory of the texts that every member has."""
    texts = client.member_id, client.rack_id, client.client_id, client.client_host, client.client_software
    return sum(map(getsizeof, texts))


def texts_bytes(texts: Iterable[str | bytes | None]) -> int:
    """Memory of texts without what holds them."""
    return sum(map(getsizeof, texts))


def names_bytes(names: frozenset[str] | None) -> int:
    """Memory of a set of names."""
    return 0 if not names else getsizeof(names) + sum(map(getsizeof, names))


def partitions_bytes(count: int) -> int:
    """Memory of partitions that are held one by one."""
    return _PARTITION_BYTES * count


def group_bytes(members: int, topics: int, partitions: int) -> int:
    """Memory of a group beside what clients chose; `partitions` are those of all members and targets."""
    return _GROUP_BYTES + _MEMBER_BYTES * members + _TOPIC_BYTES * topics + partitions_bytes(partitions)


class Sized(Protocol):
    """A member, or what it brings."""

    @property
    def member_id(self) -> str:
        """Its id."""

    @property
    def texts_bytes(self) -> int:
        """Memory of its texts."""


class SizedGroup(Protocol):
    """A group of any type."""

    @property
    def members(self) -> Mapping[str, Sized]:
        """Its members by their ids."""

    @property
    def texts_bytes(self) -> int:
        """Memory of what the clients of all members chose."""


def check_size(group: SizedGroup, request: Sized) -> None:
    """Refuse texts of a member that would make the group larger than every broker can hold.

    Raises GroupMaxSizeReached.
    """
    known = group.members.get(request.member_id)
    added = request.texts_bytes - (0 if known is None else known.texts_bytes)
    if added > 0 and group.texts_bytes + added > TEXTS_BYTES_MAX:
        raise GroupMaxSizeReached(f"the subscriptions of the group's members have more than {TEXTS_BYTES_MAX} bytes")
