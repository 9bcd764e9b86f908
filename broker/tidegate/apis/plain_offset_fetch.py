"""OffsetFetch of one group, written from the stored values in one walk.

This is what consumers send: one group, topics by name or id, no open transaction, and values as `entry_json` writes
them. Whatever needs more (an offset of another topic id, staged offsets, escapes in metadata, a failure) is left to
the general way (`fetched_offsets`), which gets what was read. Both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from struct import Struct
from typing import Any, Final, NamedTuple

from tidegate.apis.call import Call
from tidegate.apis.slices import PARTITIONS
from tidegate.apis.topic_refresh import NAMES_UNTIL
from tidegate.groups.offsets import PLAIN_ENTRY, UNSTABLE_FIELD, Committed, parse_values
from tidegate.protocol.group_writers import topic_label
from tidegate.protocol.primitives import INT16, NO_TAGS, NO_THROTTLE, length, string, uvarint
from tidegate.store.outcome import Failure
from tidegate.topics.model import Topic

OtherWay = Callable[[Call, Any, dict[str, Committed] | Failure | Exception], None]
"""Answers the request from the commits that were read, from the failure of the store, or with the exception's code."""

_FETCHED: Final = Struct(">iq").pack
_FETCHED_EPOCH: Final = Struct(">iqi").pack
_PLAIN: Final = Struct(">iqi4s").pack
"""Partition, offset, leader epoch; the last 4 bytes are of no metadata and no error."""
_NO_METADATA: Final = b'"metadata":""'
"""The fourth member of a stored value, up to a comma."""
_ERROR_FROM, _THROTTLED_FROM, _EPOCHS_FROM, _FLEXIBLE_FROM, _GROUPS_FROM = 2, 3, 5, 6, 8
_NO_ERROR: Final = INT16(0)


class _Layout(NamedTuple):
    """What all responses of a version have in common."""

    flexible: bool
    by_name: bool
    has_groups: bool
    has_epochs: bool
    start: bytes
    """Before the group's id and its topics."""
    topic_end: bytes
    end: bytes
    partition_end: bytes
    """Of a partition with metadata: no error."""
    no_metadata: bytes
    """The end of one without."""
    no_commit: bytes
    """A partition without a commit, behind its index."""


@cache
def _layout_of(version: int) -> _Layout:
    flexible, has_groups, has_epochs = version >= _FLEXIBLE_FROM, version >= _GROUPS_FROM, version >= _EPOCHS_FROM
    tags = NO_TAGS if flexible else b""
    no_metadata = (b"\1" if flexible else INT16(0)) + _NO_ERROR + tags
    return _Layout(
        flexible,
        version <= NAMES_UNTIL,
        has_groups,
        has_epochs,
        (NO_THROTTLE if version >= _THROTTLED_FROM else b"") + (length(1, True) if has_groups else b""),
        tags,
        (_NO_ERROR if version >= _ERROR_FROM else b"") + (NO_TAGS if has_groups else b"") + tags,
        _NO_ERROR + tags,
        no_metadata,
        (_FETCHED_EPOCH(0, -1, -1) if has_epochs else _FETCHED(0, -1))[4:] + no_metadata,
    )


def start_plain(call: Call, request: Any, other_way: OtherWay) -> bool:
    """Read the group's offsets and answer; False, and nothing is done, if the request is of another kind."""
    groups, context = request.groups, call.context
    if len(groups) != 1 or not call.version or context.catalog.record_topics:
        return False
    [group] = groups
    if not group.topics or group.member_id is not None:
        return False
    if call.version <= NAMES_UNTIL:
        names = [topic.name for topic in group.topics]
    else:
        topics = _topics(call, group)
        if None in topics:
            return False
        names = [topic.name for topic in topics if topic is not None]
    fields = [
        f"{name}:{index}" for name, topic in zip(names, group.topics, strict=True) for index in topic.partition_indexes
    ]
    if not 0 < len(fields) <= PARTITIONS:
        return False
    if request.require_stable:
        fields.append(UNSTABLE_FIELD)
    wanted = tuple(fields)
    on_values = partial(_answer, call, request, wanted, other_way)
    context.offsets.fetch_values(call.store.group_keys(call.org, group.group_id), wanted, on_values)
    return True


def _answer(
    call: Call, request: Any, fields: tuple[str, ...], other_way: OtherWay, values: Sequence[bytes | None] | Failure
) -> None:
    try:
        body = _body(call, request, request.groups[0], values)
    except ValueError:  # a value that no commit wrote
        body = None
    except Exception as error:  # noqa: BLE001 - the request must be answered
        other_way(call, request, error)
        return
    if body is None:
        other_way(call, request, _read(fields, values))
    else:
        call.reply(body)


def _topics(call: Call, group: Any) -> list[Topic | None]:
    """The cached topics."""
    catalog, org = call.context.catalog, call.client.org
    if call.version <= NAMES_UNTIL:
        return [catalog.get(org, wanted.name) for wanted in group.topics]
    return [None if wanted.topic_id is None else catalog.by_id(org, wanted.topic_id) for wanted in group.topics]


def _read(
    fields: Sequence[str], values: Sequence[bytes | None] | Failure
) -> dict[str, Committed] | Failure | Exception:
    """The commits, or why they cannot be read."""
    try:
        return values if isinstance(values, Failure) else parse_values(fields, values)
    except Exception as error:  # noqa: BLE001 - the request must be answered
        return error


def _body(call: Call, request: Any, group: Any, values: Sequence[bytes | None] | Failure) -> bytes | None:
    """The response; None if it needs more than the values. Raises ValueError as `_partitions` does."""
    if (
        isinstance(values, Failure)
        or call.context.catalog.record_topics
        or (request.require_stable and values[-1] is not None)
    ):
        return None
    layout = _layout_of(call.version)
    flexible, by_name = layout.flexible, layout.by_name
    out = [layout.start]
    if layout.has_groups:
        out.append(string(group.group_id, True))
    out.append(length(len(group.topics), flexible))
    at = 0
    for wanted, topic in zip(group.topics, _topics(call, group), strict=True):
        if topic is None and not by_name:
            return None
        count = len(wanted.partition_indexes)
        out += (topic_label(wanted.name if by_name else wanted.topic_id, flexible), length(count, flexible))
        topic_hex = b"" if topic is None else topic.topic_hex.encode()
        if not _partitions(layout, wanted.partition_indexes, values[at : at + count], topic_hex, out):
            return None
        at += count
        out.append(layout.topic_end)
    out.append(layout.end)
    return b"".join(out)


def _partitions(
    layout: _Layout, indexes: Sequence[int], values: Sequence[bytes | None], topic_hex: bytes, out: list[bytes]
) -> bool:
    """Write one topic's partitions; False if a value is not plain, or of another topic than `topic_hex`.

    Raises ValueError for a value that has not the members of a stored one.
    """
    no_metadata, add = layout.no_metadata, out.append
    topic_member, plain_member = b'"topic_id":"%b"' % topic_hex, _NO_METADATA if layout.has_epochs else None
    for index, value in zip(indexes, values, strict=True):
        if value is None:
            out += (index.to_bytes(4, "big", signed=True), layout.no_commit)
            continue
        offset, leader_epoch, topic_id, metadata, _ = value.split(b",", 4)
        if topic_id != topic_member:
            return False
        if metadata == plain_member:
            add(_PLAIN(index, int(offset[10:]), int(leader_epoch[15:]), no_metadata))  # behind `{"offset":` and so on
        elif not _with_metadata(layout, index, value, out):
            return False
    return True


def _with_metadata(layout: _Layout, index: int, value: bytes, out: list[bytes]) -> bool:
    """Write a partition whose commit has metadata; False if it has escapes."""
    found = PLAIN_ENTRY.match(value)
    if found is None:
        return False
    offset, leader_epoch, _, metadata = found.groups()
    size = len(metadata)
    if layout.has_epochs:
        out.append(_FETCHED_EPOCH(index, int(offset), int(leader_epoch)))
    else:
        out.append(_FETCHED(index, int(offset)))
    out += (uvarint(size + 1) if layout.flexible else INT16(size), metadata, layout.partition_end)
    return True
