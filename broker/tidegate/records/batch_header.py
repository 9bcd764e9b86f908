"""The header of a record batch of magic 2: where its fields are, and the structs that read or write several of them.

```
0 base_offset      8 batch_length     12 partition_leader_epoch   16 magic        17 crc (of bytes 21..end)
21 attributes      23 last_offset_delta 27 base_timestamp          35 max_timestamp
43 producer_id     51 producer_epoch   53 base_sequence            57 record_count  61 records
```
Attributes: bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon. Source: Kafka's
DefaultRecordBatch.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

HEADER_BYTES: Final = 61
"""Where the records area starts."""
HEADER: Final = Struct(">qiibIhiqqqhii")
"""The complete header, in the order of the table above."""
MAGIC: Final = 2

LENGTH_AT: Final = 8
LENGTH_OVERHEAD: Final = 12
"""Bytes of a batch that its length field does not count."""
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
ATTRIBUTES_LOW_AT: Final = 22
"""The lower byte of the attributes, which has all the bits below."""
CRC_FROM: Final = ATTRIBUTES_AT
"""First byte that the CRC covers."""
LAST_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_AT: Final = 43
RECORD_COUNT_AT: Final = 57

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
CRC: Final = Struct(">I")
PLACE: Final = Struct(">qii")
"""From byte 0: base offset, length, leader epoch. The CRC does not cover them."""
PLACE_BYTES: Final = MAGIC_AT
CRC_TO_LAST_DELTA: Final = Struct(">Ihi")
"""From `CRC_AT`: CRC, attributes, last offset delta."""
ATTRIBUTES_TO_SEQUENCE: Final = Struct(">hiqqqhi")
"""From `ATTRIBUTES_AT`: attributes, last offset delta, timestamps, producer id, producer epoch, base sequence."""
PRODUCER: Final = Struct(">qhi")
"""From `PRODUCER_AT`: producer id, producer epoch, base sequence."""

CODEC_BITS: Final = 0x07
TIMESTAMP_TYPE: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
