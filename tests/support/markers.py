"""Control batches as other systems write them: logs that were copied from Apache Kafka may hold some."""

from __future__ import annotations

import struct

from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch


def build_marker(
    *, producer_id: int, producer_epoch: int, coordinator_epoch: int, committed: bool, timestamp_ms: int
) -> bytes:
    """The control batch that ends a transaction on a partition (KIP-98)."""
    record = NewRecord(struct.pack(">hi", 0, coordinator_epoch), struct.pack(">hh", 0, committed), timestamp_ms)
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )
