"""Many committed offsets of a group, in parts: it may have some for each partition of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from tidegate.apis.slices import PARTITIONS, in_slices
from tidegate.groups.offsets import UNSTABLE_FIELD, Committed, Offsets, offset_field, parse_entry, split_field
from tidegate.store.keys import GroupKeys

_UNSTABLE: Final = UNSTABLE_FIELD.encode()


def has_parts(group: Any) -> bool:
    """Whether a group of an OffsetFetch is read in parts: all commits, or those of more partitions than one has."""
    return group.topics is None or sum(len(topic.partition_indexes) for topic in group.topics) > PARTITIONS


async def all_in_parts(offsets: Offsets, keys: GroupKeys) -> AsyncIterator[dict[str, Committed]]:
    """The commits by field, in the order of their topics and partitions, in parts of `PARTITIONS`.

    A part with partitions that have staged offsets names them as `UNSTABLE_FIELD` does. Raises StoreUnavailable.
    """
    values = await offsets.fetch_all(keys)
    staged = frozenset(parse_entry(values[_UNSTABLE]).metadata.split(" ")) if _UNSTABLE in values else frozenset()
    topics: dict[str, list[int]] = {}
    async for field in in_slices(values):
        if field != _UNSTABLE:
            topic, index = split_field(field.decode())
            topics.setdefault(topic, []).append(index)
    part: dict[str, Committed] = {}
    async for name in in_slices(
        offset_field(topic, index) for topic in sorted(topics) for index in sorted(topics[topic])
    ):
        part[name] = parse_entry(values[name.encode()])
        if len(part) == PARTITIONS:
            yield _with_staged(part, staged)
            part = {}
    if part:
        yield _with_staged(part, staged)


def _with_staged(part: dict[str, Committed], staged: frozenset[str]) -> dict[str, Committed]:
    names = part.keys() & staged
    return part | {UNSTABLE_FIELD: Committed(-1, -1, " ".join(names), "")} if names else part
