"""Client ids and hosts of a group's members, for components that attribute fetches to members."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from tidegate.store.keys import GroupKeys
from tidegate.store.slices import slices
from tidegate.store.store import Store

_AT_ONCE: Final = 100
"""Members that are parsed without a pause."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The members of one generation: the group's own id, and by member id its client id and host (`/127.0.0.1`)."""

    own_id: str
    clients: dict[str, tuple[str, str]]


async def read_clients(store: Store, keys: GroupKeys, generation: int, leader: str) -> Clients | None:
    """Read the members without a script; None if the group is not in this generation with this leader.

    Raises StoreUnavailable.
    """
    (own_id, now, led_by), records = await asyncio.gather(
        store.read("HMGET", keys.group, "id", "generation", "leader"), store.read("HGETALL", keys.members)
    )
    if own_id is None or (int(now), led_by.decode()) != (generation, leader):
        return None
    clients: dict[str, tuple[str, str]] = {}
    async for part in slices(records.items(), _AT_ONCE):
        for member_id, text in part:
            record = json.loads(text)
            clients[member_id.decode()] = record["client_id"], record["client_host"]
    return Clients(own_id.decode(), clients)
