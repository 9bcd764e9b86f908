"""Offsets as ids of stream entries, and back. In format `batch` an entry starts at `base` and has the id `<base>-1`.

Ids compare as offsets do. `<offset>-0` is no entry's: it stands before the entry that starts at the offset and
behind all that start below it, so a Redis group that stands there reads that entry next. In redis-cli,
`XRANGE <log> <base>-1 <base>-1` is the entry, and a `last-delivered-id` of `<base>-1` or `<base>-0` says that the
entry at `base` was or was not handed out yet.
"""

from __future__ import annotations


def id_of(base: int) -> str:
    """The entry that starts at an offset."""
    return f"{base}-1"


def id_before(offset: int) -> str:
    """Before the entry that starts at an offset, behind all below."""
    return f"{offset}-0"


def offset_of(stream_id: bytes | str) -> int:
    """The offset in an id of either kind."""
    text = stream_id.decode() if isinstance(stream_id, bytes) else stream_id
    return int(text.partition("-")[0])
