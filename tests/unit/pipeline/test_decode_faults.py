"""Broken batches: never a crash, never a wrong row under a good CRC, memory bounded (spec 11, groups 2 and 8)."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.support.stored_batches import sealed_batch, stored_batch
from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records.batch import Codec
from tidegate.records.batch_header import CRC_FROM, HEADER_BYTES
from tidegate.records.build import NewRecord, encode_record, seal
from tidegate_pipeline.decode import plain
from tidegate_pipeline.decode.decoder import CorruptBatch, Decoder, EngineName, StoredBatch
from tidegate_pipeline.decode.opening import TIMESTAMP_MS_MAX, Opener
from tidegate_pipeline.decode.schema import DECODED_ARROW

ENGINES: list[EngineName] = ["numpy", "numba"]
BYTES_MAX = 1 << 20
RECORDS = [
    NewRecord(b"value %d" % n * n, b"key" if n % 3 else None, 1_000 + n, [("h", b"x")] * (n % 4)) for n in range(20)
]
GOOD = stored_batch(RECORDS)


@pytest.fixture(scope="module", params=ENGINES)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder(engine=request.param, decoded_batch_max=BYTES_MAX)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """A source of chance; TIDEGATE_SEED chooses it, else it is drawn and printed."""
    seed = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"{request.node.name}: TIDEGATE_SEED={seed}")
    return random.Random(seed)


def changed(data: bytes, chance: random.Random, first: int = 0) -> bytes:
    """Some bytes behind `first` flipped, cut or put in."""
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(first, max(len(found), first + 1))
        match chance.randrange(5):
            case 0:
                del found[at:]
            case 1:
                found[at:at] = chance.randbytes(chance.choice([1, 2, 40]))
            case 2:
                del found[at : at + chance.choice([1, 2, 40])]
            case 3:
                found[at : at + 1] = chance.choice([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff" * 9])
            case _:
                found[at : at + 1] = bytes([1 << chance.randrange(8)])
    return bytes(found)


def plainly(stored: StoredBatch) -> list[plain.Row] | None:
    """The rows of one batch by the plain way; None when it is corrupt."""
    try:
        batch = Opener(BYTES_MAX).open(stored).batch
        return plain.read_rows(batch, "topic", 0, BYTES_MAX) if not batch.is_control else []
    except (CorruptMessage, InvalidRecord):
        return None


def check(decoder: Decoder, stored: list[StoredBatch]) -> list[CorruptBatch]:
    """What the decoder gives is what the plain way gives of each batch."""
    expected = [(each, plainly(each)) for each in stored]
    batch, faults = decoder.decode("topic", 0, stored)
    assert batch.schema.equals(DECODED_ARROW, check_metadata=True)
    batch.validate(full=True)
    assert batch.equals(plain.to_arrow([row for _, rows in expected for row in rows or ()], DECODED_ARROW))
    assert sorted(each.base_offset for each in faults) == [each.base_offset for each, rows in expected if rows is None]
    return faults


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_no_row_of_a_batch_with_a_wrong_crc(decoder: Decoder, chance: random.Random, codec: Codec):
    good = stored_batch(RECORDS, codec=codec)
    for _ in range(150):
        broken = changed(good, chance, first=CRC_FROM)
        if broken == good:
            continue
        batch, (fault,) = decoder.decode("topic", 0, [StoredBatch(good, 0), StoredBatch(broken, 20)])

        assert batch["offset"].to_pylist() == list(range(20))
        assert fault.batch == broken
        assert re.search("CRC|complete|are stored|smaller than", fault.reason)


@pytest.mark.parametrize("codec", list(Codec))
def test_stored_bytes_changed_under_a_good_crc(decoder: Decoder, chance: random.Random, codec: Codec):
    good = stored_batch(RECORDS, codec=codec)
    for _ in range(120):
        broken = bytearray(changed(good, chance, first=CRC_FROM))
        if len(broken) < HEADER_BYTES:
            continue
        broken[8:12] = (len(broken) - 12).to_bytes(4, "big")
        check(decoder, [StoredBatch(good, 0), StoredBatch(bytes(seal(broken)), 20), StoredBatch(good, 100)])


def test_records_changed_under_a_good_crc(decoder: Decoder, chance: random.Random):
    quiet = 0
    for _ in range(400):
        area = changed(GOOD[HEADER_BYTES:], chance)
        header = {"record_count": 20, "base_timestamp": 1_000}
        faults = check(decoder, [StoredBatch(sealed_batch(area, Codec.LZ4, **header), 0), StoredBatch(GOOD, 20)])
        quiet += not faults
    assert 0 < quiet < 300, "changes of keys and values pass, of lengths do not"


FIRST, SECOND = (encode_record(NewRecord(b"value"), delta, 0) for delta in (0, 1))
BEYOND, BEFORE = (encode_record(RECORDS[0], delta, 0) for delta in (9, -1))
HUGE_KEY = b"\x28\x00\x00\x00" + b"\xff" * 9 + b"\x00" * 8
FAULTS = {
    "no batch at all": (b"", "no complete record batch"),
    "a header that is cut": (GOOD[:50], "not complete"),
    "bytes behind the batch": (GOOD + b"x", "are stored"),
    "another magic": (GOOD[:16] + b"\x01" + GOOD[17:], "magic 1"),
    "a codec that is none": (sealed_batch(FIRST, record_count=1, attributes=6), "unknown compression codec 6"),
    "garbage under a codec": (sealed_batch(FIRST, record_count=1, attributes=Codec.ZSTD), "cannot be decompressed"),
    "fewer records than counted": (sealed_batch(FIRST, record_count=2), "do not fit"),
    "a record too many": (sealed_batch(FIRST + SECOND, record_count=1), "follow the last record"),
    "a negative count": (sealed_batch(FIRST, record_count=-1), "-1 records"),
    "an empty batch with bytes": (sealed_batch(FIRST), "bytes follow the header"),
    "more records than offsets": (sealed_batch(FIRST + SECOND, record_count=2, last_offset_delta=0), "last offset"),
    "an offset twice": (sealed_batch(FIRST + FIRST, record_count=2), "offset 5 follows 5"),
    "an offset behind the last": (sealed_batch(FIRST + BEYOND, record_count=2), "batch's last, 6"),
    "an offset before the first": (sealed_batch(BEFORE, record_count=1), "offset 4 follows 4"),
    "a null name of a header": (sealed_batch(b"\x12\x00\x00\x00\x01\x01\x02\x01\x01\x00", record_count=1), "is null"),
    "a key beyond its record": (sealed_batch(b"\x0e\x00\x00\x00\x40\x01\x00\x00", record_count=1), "beyond its record"),
    "a length without end": (sealed_batch(b"\x80" * 100, record_count=1), "varint is too long"),
    "a key of 2^62 bytes": (sealed_batch(HUGE_KEY, record_count=1), "reaches beyond|wrong"),
    "a time beyond Spark's": (stored_batch([NewRecord(b"x", timestamp=TIMESTAMP_MS_MAX + 1)]), "beyond what Spark"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_and_its_neighbours_are_read(decoder: Decoder, name: str):
    broken, reason = FAULTS[name]

    (fault,) = check(decoder, [StoredBatch(GOOD, 100), StoredBatch(broken, 5), StoredBatch(GOOD, 200)])

    assert re.search(reason, fault.reason)
    assert fault.base_offset == 5 <= fault.last_offset
    assert fault.batch == broken


def test_last_offset_of_a_fault_is_its_headers(decoder: Decoder):
    broken = bytearray(GOOD)
    broken[-1] ^= 1

    _, (fault,) = decoder.decode("topic", 0, [StoredBatch(bytes(broken), 40)])

    assert (fault.base_offset, fault.last_offset) == (40, 59)


def test_times_delta_that_wraps_is_a_fault(decoder: Decoder):
    for base, timestamp in ((TIMESTAMP_MS_MAX, -(1 << 63)), (-TIMESTAMP_MS_MAX, (1 << 63) - 1), (0, 1 << 62)):
        area = encode_record(NewRecord(b"x", timestamp=timestamp), 0, 0)
        check(decoder, [StoredBatch(sealed_batch(area, record_count=1, base_timestamp=base), 0)])


def test_stored_offsets_and_epochs_are_not_trusted(decoder: Decoder):
    moved = (1 << 60).to_bytes(8, "big") + GOOD[8:12] + b"\x7f\x00\x00\x00" + GOOD[16:]

    batch, faults = decoder.decode("topic", 0, [StoredBatch(moved, 7)])

    assert not faults
    assert batch["offset"].to_pylist() == list(range(7, 27))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bomb_is_corrupt_without_the_memory(decoder: Decoder, codec: Codec):
    bomb = StoredBatch(sealed_batch(bytes(150 << 20), codec, record_count=1), 0)
    before = peak_bytes(reset=True)

    batch, (fault,) = decoder.decode("topic", 0, [bomb])

    assert batch.num_rows == 0
    assert "larger than" in fault.reason
    assert peak_bytes() - before < (16 << 20) + 2 * len(bomb.buffer)


def test_sizes_that_frames_claim_are_not_trusted(decoder: Decoder):
    lz4_claim = b"\x04\x22\x4d\x18\x68\x40" + (1 << 60).to_bytes(8, "little") + bytes(20)
    zstd_claim = b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + bytes(20)
    for codec, claim in ((Codec.LZ4, lz4_claim), (Codec.ZSTD, zstd_claim)):
        stored = bytearray(sealed_batch(b"", record_count=1) + claim)
        stored[8:12] = (len(stored) - 12).to_bytes(4, "big")
        stored[22] |= codec

        _, (fault,) = decoder.decode("topic", 0, [StoredBatch(bytes(seal(stored)), 0)])

        assert re.search("larger than|cannot be decompressed", fault.reason)


def peak_bytes(reset: bool = False) -> int:
    """The most memory that this process had, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) << 10
