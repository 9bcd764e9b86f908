"""Record batches of any shape, valid or damaged, and fetched batches as plain values."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from crc32c import crc32c

from tests.support.stored_batches import sealed_batch
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import CONTROL, TIMESTAMP_TYPE, TRANSACTIONAL
from tidegate.records.build import NewRecord, encode_record, encode_varint, seal
from tidegate.records.compression import decompress
from tidegate.records.record import read_records

RECORD_TIME: Final = 1_700_000_000_000
"""Of the first record, ms: long ago, so that it is no time of an append."""
RECENT: Final = 1_750_000_000_000
"""Times from here on are of the targets' clocks."""
_CODECS: Final = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
_OPENED_BYTES_MAX: Final = 1 << 22

Damage = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a batch has besides its producer; `damage` changes the bytes at last."""

    area: bytes
    codec: int
    header: Mapping[str, int]
    damage: Damage | None = None
    name: str = "good"

    @property
    def count(self) -> int:
        """Its records, by the header."""
        return self.header["record_count"]

    def bytes_of(
        self, producer_id: int = -1, epoch: int = -1, sequence: int = -1, transactional: bool = False
    ) -> bytes:
        """The batch of a producer."""
        raw = sealed_batch(self.area, self.codec, **{
            **self.header, "producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence,
            "attributes": TRANSACTIONAL if transactional else 0,
        })  # fmt: skip
        return raw if self.damage is None else self.damage(raw)


def good(chance: random.Random, count: int = 0, keyed: bool = False) -> Shape:
    """A valid batch of a few records."""
    count = count or chance.choice((1, 1, 2, 3, 5))
    times = [RECORD_TIME + chance.randrange(0, 10_000, 100) for _ in range(count)]
    records = [_record(chance, one, keyed) for one in times]
    area = b"".join(encode_record(one, index, times[0]) for index, one in enumerate(records))
    return _shape(area, chance.choice(_CODECS), times)


def _record(chance: random.Random, time: int, keyed: bool) -> NewRecord:
    key = chance.choice((b"k1", b"k2", b"")) if keyed or chance.random() < 0.6 else None
    headers = [("h", chance.choice((None, b"", b"x")))] * chance.choice((0, 0, 1, 2))
    return NewRecord(chance.choice((None, b"", b"v", b"value" * 20)), key, time, headers)


def _shape(area: bytes, codec: int, times: list[int], **header: int) -> Shape:
    own = {
        "record_count": len(times), "last_offset_delta": len(times) - 1,
        "base_timestamp": times[0], "max_timestamp": max(times),
    }  # fmt: skip
    return Shape(area, codec, own | header)


# -- damage


def with_field(at: int, form: str, value: int) -> Damage:
    """Another value in the header, and the CRC of that."""

    def damage(raw: bytes) -> bytes:
        changed = bytearray(raw)
        struct.pack_into(form, changed, at, value)
        return bytes(seal(changed))

    return damage


def _with_attributes(bits: int) -> Damage:
    return lambda raw: with_field(21, ">h", struct.unpack_from(">h", raw, 21)[0] | bits)(raw)


def _shifted(at: int, form: str, by: int) -> Damage:
    return lambda raw: with_field(at, form, struct.unpack_from(form, raw, at)[0] + by)(raw)


def _with_codec(codec: int) -> Damage:
    return lambda raw: with_field(21, ">h", struct.unpack_from(">h", raw, 21)[0] & ~7 | codec)(raw)


# Not among them is what Kafka corrects where it writes a batch anew, and Tidegate appends as it is: the largest time in
# the header, unused attributes, times and lengths below -1. So no byte of the records is changed at random either.
_DAMAGE: Final[Mapping[str, Damage]] = {
    "flipped": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "truncated": lambda raw: raw[:-3],
    "empty": lambda raw: b"",
    "short": lambda raw: raw[:30],
    "two batches": lambda raw: raw + raw,
    "junk behind": lambda raw: raw + b"abc",
    "part of a batch behind": lambda raw: raw + raw[:40],
    "magic 0": with_field(16, ">b", 0),
    "magic 1": with_field(16, ">b", 1),
    "magic 3": with_field(16, ">b", 3),
    "magic -1": with_field(16, ">b", -1),
    "length 10": with_field(8, ">i", 10),
    "length 40": with_field(8, ">i", 40),
    "length 0": with_field(8, ">i", 0),
    "negative length": with_field(8, ">i", -5),
    "base offset": with_field(0, ">q", 7),
    "leader epoch": with_field(12, ">i", 5),
    "last offset delta above": _shifted(23, ">i", 2),
    "last offset delta below": _shifted(23, ">i", -1),
    "negative last offset delta": with_field(23, ">i", -1),
    "count 0": with_field(57, ">i", 0),
    "negative count": with_field(57, ">i", -1),
    "count above": lambda raw: _shifted(57, ">i", 1)(_shifted(23, ">i", 1)(raw)),
    "control": _with_attributes(CONTROL),
    "timestamp type": _with_attributes(TIMESTAMP_TYPE),
    "codec 5": _with_codec(5),
    "codec 7": _with_codec(7),
    "other codec gzip": _with_codec(1),
    "other codec snappy": _with_codec(2),
    "other codec lz4": _with_codec(3),
    "other codec zstd": _with_codec(4),
    "producer without sequence": with_field(43, ">q", 91_000_001),
    "sequence without producer": with_field(53, ">i", 3),
    "negative sequence": with_field(53, ">i", -2),
    "negative producer": with_field(43, ">q", -2),
    "negative epoch": with_field(51, ">h", -2),
    "transactional without a transaction": _with_attributes(TRANSACTIONAL),
}


def damaged(chance: random.Random) -> Shape:
    """A batch that is mostly wrong, in its header or in its records."""
    name = chance.choice([*_DAMAGE, *_AREAS])
    if name in _AREAS:
        shape = _AREAS[name]()
        return Shape(shape.area, chance.choice(_CODECS), shape.header, name=name)
    shape = good(chance)
    return Shape(shape.area, shape.codec, shape.header, _DAMAGE[name], name)


def _area_of(body: bytes, times: int = 1, **header: int) -> Shape:
    return _shape((encode_varint(len(body)) + body) * times, 0, [RECORD_TIME] * times, **header)


def _body(delta: int = 0, attributes: bytes = b"\0", key: bytes = b"\1", headers: bytes = b"\0") -> bytes:
    """A record without its length."""
    return attributes + encode_varint(0) + encode_varint(delta) + key + b"\2v" + headers


_AREAS: Final[Mapping[str, Callable[[], Shape]]] = {
    "offset delta 5": partial(_area_of, _body(delta=5)),
    "equal offset deltas": partial(_area_of, _body(), 2),
    "negative count of headers": partial(_area_of, _body(headers=encode_varint(-1))),
    "count of headers above": partial(_area_of, _body(headers=encode_varint(3))),
    "null key of a header": partial(_area_of, _body(headers=encode_varint(1) + b"\1\1")),
    "bytes behind the headers": partial(_area_of, _body() + b"\0\0"),
    "length of the key above": partial(_area_of, _body(key=encode_varint(50))),
    "bytes behind the records": lambda: Shape(_area_of(_body()).area + b"\0\0\0", 0, _area_of(_body()).header),
    "no records": lambda: Shape(b"", 0, _area_of(_body()).header),
    "record of no bytes": partial(_area_of, b""),
    "negative time": lambda: _shape(encode_record(NewRecord(b"v", b"k", -1), 0, -1), 0, [-1]),
    "time of the future": lambda: _shape(encode_record(NewRecord(b"v", b"k", 1 << 50), 0, 1 << 50), 0, [1 << 50]),
}


# -- what was fetched


def batches_in(raw: bytes, producer: Callable[[int], Any]) -> list[dict[str, Any]]:
    """The complete batches of a fetch."""
    found = []
    while len(raw) > 12 and len(raw) >= (size := 12 + int.from_bytes(raw[8:12], "big")):
        found.append(_plain(Batch.parse(raw[:size]), producer))
        raw = raw[size:]
    return found


def _plain(batch: Batch, producer: Callable[[int], Any]) -> dict[str, Any]:
    area = bytes(decompress(batch.codec, batch.records, _OPENED_BYTES_MAX))
    return {
        "base_offset": batch.base_offset,
        "leader_epoch": batch.leader_epoch,
        "crc_is_right": crc32c(batch.buffer[21:]) == batch.crc,
        "attributes": batch.attributes,
        "last_offset_delta": batch.last_offset_delta,
        "base_timestamp": "<now>" if batch.is_control else batch.base_timestamp,
        "max_timestamp": "<now>" if batch.max_timestamp >= RECENT else batch.max_timestamp,
        "producer_id": producer(batch.producer_id),
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "record_count": batch.record_count,
        "records": [one.key for one in read_records(batch)] if batch.is_control else area.hex(),
    }
