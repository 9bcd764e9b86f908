"""Partition owners by group: they identify the group of a fetch, which does not name one.

The `owners` hash of a partition maps a group to JSON: the group's own id, generation, member, client id and host. It
is written when a group's assignment is stored, only by a later generation, and may be lost; the mirror then shows
less. The group's own id and generation decide whether a record is current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

NOTE_OWNER: Final = Script("log/note_owner")

Reader = tuple[str, str]
"""A client as its connection identifies it: client id, and host as groups write it (`/127.0.0.1`)."""
Connection = tuple[str, str, int]
"""A connection of a client: client id, host, and the connection's number at this broker."""


class Owner(NamedTuple):
    """One group's owner of a partition; `id` and `generation` come first, as the script expects."""

    id: str
    generation: int
    member_id: str
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class Owned:
    """An owner with its group, and the record as read, which the script compares."""

    group_id: str
    owner: Owner
    record: bytes


def parse_owners(reply: Mapping[bytes, bytes]) -> dict[Reader, list[Owned]]:
    """The owners of a partition by client; unreadable records are left out."""
    found: dict[Reader, list[Owned]] = {}
    for group, record in reply.items():
        try:
            owned = Owned(group.decode(), _owner(record), record)
        except (ValueError, TypeError):
            continue
        found.setdefault((owned.owner.client_id, owned.owner.client_host), []).append(owned)
    return found


def _owner(record: bytes) -> Owner:
    """Raises ValueError, TypeError."""
    owner = Owner(**json.loads(record))
    if tuple(map(type, owner)) != (str, int, str, str, str):
        raise TypeError(record)
    return owner


async def note_owner(store: Store, keys: LogKeys, group_id: str, owner: Owner) -> None:
    """Record a partition's owner. Raises IllegalGeneration, UnknownTopicOrPartition, StoreUnavailable."""
    await store.run(NOTE_OWNER, [keys.log, keys.owners], group_id, owner.id, owner.generation, _record(owner))


def _record(owner: Owner) -> str:
    """The JSON of an owner."""
    return json.dumps(owner._asdict(), separators=(",", ":"))
