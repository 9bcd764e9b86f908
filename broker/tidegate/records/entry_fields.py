"""The fields of a stream entry and the Kafka record that it stands for (docs/record-topics.md).

| Field | Meaning |
|---|---|
| `key` | the record's key; absent: null |
| `value` | the record's value; absent: null, a tombstone |
| `timestamp` | the record's timestamp in ms, where it is not that of the entry's id |
| `header:<name>` | a header |
| `header-null:<name>` | a header whose value is null; the field's own value is empty |
| any other | a header of this name: what a Redis program added |

The order of fields is that of the headers; a name may occur twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.errors import InvalidRecord
from tidegate.records.build import NewRecord
from tidegate.records.record import Record

KEY: Final = b"key"
VALUE: Final = b"value"
TIMESTAMP: Final = b"timestamp"
HEADER: Final = b"header:"
NULL_HEADER: Final = b"header-null:"
HEADERS_MAX: Final = 1_000
"""Limit of a record's headers: a script passes all fields of an entry to one command, at most 8,000 in Lua."""
_TIMESTAMP_DIGITS_MAX: Final = 15


def fields_of(record: Record) -> list[bytes]:
    """The fields and values of a record, without its timestamp. Raises InvalidRecord for too many headers."""
    if len(record.headers) > HEADERS_MAX:
        raise InvalidRecord(f"a record has {len(record.headers)} headers; topics of format record take {HEADERS_MAX}")
    fields: list[bytes] = []
    if record.key is not None:
        fields += (KEY, record.key)
    if record.value is not None:
        fields += (VALUE, record.value)
    for name, value in record.headers:
        if value is None:
            fields += (NULL_HEADER + name.encode(), b"")
        else:
            fields += (HEADER + name.encode(), value)
    return fields


def record_of(fields: Sequence[bytes], ms: int) -> NewRecord:
    """The record of an entry whose id has these milliseconds. Any fields make a record."""
    key: bytes | None = None
    value: bytes | None = None
    timestamp = ms
    headers: list[tuple[str, bytes | None]] = []
    for i in range(0, len(fields) - 1, 2):
        name, content = fields[i], fields[i + 1]
        if name == VALUE and value is None:
            value = content
        elif name == KEY and key is None:
            key = content
        elif name == TIMESTAMP and (parsed := _timestamp(content)) is not None:
            timestamp = parsed
        elif name.startswith(HEADER):
            headers.append((_name(name[len(HEADER) :]), content))
        elif name.startswith(NULL_HEADER) and not content:
            headers.append((_name(name[len(NULL_HEADER) :]), None))
        else:
            headers.append((_name(name), content))
    return NewRecord(value, key, timestamp, headers)


def _name(name: bytes) -> str:
    """A header's name: clients decode it as UTF-8, and some fail where it is not."""
    return name.decode("utf-8", "replace")


def _timestamp(content: bytes) -> int | None:
    """Milliseconds, -1 for none; None if the text is no such number."""
    if content == b"-1":
        return -1
    return int(content) if content.isdigit() and len(content) <= _TIMESTAMP_DIGITS_MAX else None
