"""Where transactions begin and end in a log of format batch, read from its entries by a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tidegate.store.scripts import Script

READ_TRANSACTIONS: Final = Script("archive/read_transactions")

RECORDS: Final = 0
"""Kind of an event: the first batch of records of a producer, or a later one of the same transaction."""
ABORT: Final = 2
"""Kind of an event: a marker of an aborted transaction; every other kind is one of a committed transaction."""


def events_of(flat: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Offset, producer id and kind of each event, from a reply of the script."""
    return zip(flat[::3], flat[1::3], flat[2::3], strict=True)
