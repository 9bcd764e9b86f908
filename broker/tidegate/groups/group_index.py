"""A shard's index of groups: the names in it, and the keys that they stand for."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from tidegate.store.calls import log_faulty
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import FaultyKeys
from tidegate.store.store import Store


def group_of(store: Store, ref: str) -> GroupKeys:
    """The keys of a group from its name in the shard's keys, `<org>/<percent-encoded group id>`."""
    org, _, encoded = ref.partition("/")
    return store.stored_group_keys(org, unquote(encoded))


def decode_name(name: bytes) -> str:
    """A group's name in the shard's keys; one that no broker wrote becomes the name of a group that does not exist."""
    return name.decode(errors="replace")


async def read_group_names(store: Store, shard: int, work: str) -> list[str]:
    """The names of a shard's groups, for work on all groups: none if the key is of another type.

    Raises StoreUnavailable.
    """
    return [decode_name(name) for name in await _read_index(store, shard, work, "HKEYS")]


async def read_group_kinds(store: Store, shard: int, work: str) -> dict[str, bytes]:
    """The same with what the index has of each group: its type, state and protocol type."""
    return {decode_name(name): kind for name, kind in (await _read_index(store, shard, work, "HGETALL")).items()}


async def _read_index(store: Store, shard: int, work: str, command: str) -> Any:
    key = store.shard_keys(shard).groups
    try:
        return await store.command(command, key)
    except FaultyKeys as error:
        log_faulty(work, {key: error})
        return {}
