"""Commits with much metadata: a full Redis refuses them, while it stores all others.

Offsets must be stored when memory ends, or consumers would repeat records; a commit adds about 150 bytes a partition,
once. Metadata may add 4 kB a partition each time, and would take what the other groups need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

METADATA_MAX: Final = 16_384
"""Characters of metadata in a commit that a full Redis stores."""
FEW_ENTRIES: Final = 4
"""Partitions whose metadata cannot exceed that by default."""
_PLAIN_ENTRY: Final = 200
"""Characters of a field and of its value without metadata, at most in the mean."""


def is_large(entries: Sequence[str]) -> bool:
    """Whether the metadata of a commit's fields and values is above METADATA_MAX."""
    return sum(map(len, entries)) > METADATA_MAX + _PLAIN_ENTRY * len(entries) // 2
