"""Convert offsets to stream entry ids and back. In format `batch` the entry starting at `base` has the id `<base>-1`.

Ids sort as offsets do. No entry has the id `<offset>-0`: it sorts before the entry that starts at the offset and
after all that start below it, so a Redis group with this last id reads that entry next. In redis-cli,
`XRANGE <log> <base>-1 <base>-1` returns the entry; a `last-delivered-id` of `<base>-1` means that the entry at `base`
was delivered, `<base>-0` that it was not.
"""

from __future__ import annotations


def id_of(base: int) -> str:
    """The id of the entry that starts at an offset."""
    return f"{base}-1"


def id_before(offset: int) -> str:
    """The id before the entry that starts at an offset and after all entries below."""
    return f"{offset}-0"


def offset_of(stream_id: bytes | str) -> int:
    """The offset in an id of either form."""
    text = stream_id.decode() if isinstance(stream_id, bytes) else stream_id
    return int(text.partition("-")[0])
