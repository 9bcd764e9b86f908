"""The decoder beside two clients' parsers, over the same batches: CRC, decompression and Arrow columns in all.

Each takes its turn many times and its best counts, so that what else the machine does takes little part. Ratios are
the figures to keep.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch
from tidegate_pipeline.decode.decoder import GROUP_BYTES, Decoder, EngineName, StoredBatch
from tidegate_pipeline.decode.schema import DECODED_ARROW_WITHOUT_HEADERS

FLOORS: Final = {"kafka-python": 10.0, "aiokafka": 1.5}
"""What numpy must be, at least, times these parsers, with 100 B values, uncompressed."""

WORKS: Final = (
    ("100 B", 100, Codec.NONE, 1_000),
    ("100 B lz4", 100, Codec.LZ4, 1_000),
    ("100 B zstd", 100, Codec.ZSTD, 1_000),
    ("1 KiB", 1024, Codec.NONE, 1_000),
    ("100 B zstd, 10 a batch", 100, Codec.ZSTD, 10),
)
"""Name, bytes of a value, codec, records of a batch. Keys have 16 bytes; half of a value is random."""

Way = Callable[[Sequence[StoredBatch]], int]


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `decoder`."""
    command.add_argument("--seconds", type=float, default=1.0, help="for each way and work")
    command.add_argument("--check", action="store_true", help="exit 1 where the decoder is below its floors")


def group(value_bytes: int, codec: int, batch_records: int) -> list[StoredBatch]:
    """Batches of one group, about `GROUP_BYTES` decompressed."""
    chance = random.Random(1)
    stored: list[StoredBatch] = []
    for base_offset in range(0, max(GROUP_BYTES // (value_bytes + 30), 1), batch_records):
        built = [
            NewRecord(
                chance.randbytes(value_bytes // 2) + bytes(value_bytes - value_bytes // 2),
                chance.randbytes(16),
                1_700_000_000_000 + index // 10,
            )
            for index in range(batch_records)
        ]
        stored.append(StoredBatch(build_batch(built, codec=codec, base_offset=base_offset), base_offset))
    return stored


def _by_objects(parse: Callable[[bytes], Any]) -> Way:
    def way(batches: Sequence[StoredBatch]) -> int:
        rows: list[tuple[Any, ...]] = []
        for stored in batches:
            batch = parse(bytes(stored.buffer))
            assert batch.validate_crc()
            rows += [(r.key, r.value, "topic", 0, r.offset, r.timestamp * 1000, r.timestamp_type) for r in batch]
        columns = zip(zip(*rows, strict=True), DECODED_ARROW_WITHOUT_HEADERS, strict=True)
        arrays = [pa.array(column, field.type) for column, field in columns]
        return int(pa.RecordBatch.from_arrays(arrays, schema=DECODED_ARROW_WITHOUT_HEADERS).num_rows)

    return way


def _by_decoder(engine: EngineName) -> Way:
    decoder = Decoder(engine=engine)

    def way(batches: Sequence[StoredBatch]) -> int:
        rows, faults = decoder.decode("topic", 0, batches)
        assert not faults
        return int(rows.num_rows)

    return way


def ways() -> dict[str, Way]:
    """Every way by its name."""
    return {
        "kafka-python": _by_objects(KafkaPythonBatch),
        "aiokafka": _by_objects(AiokafkaBatch),
        "numpy": _by_decoder("numpy"),
        "numba": _by_decoder("numba"),
    }


def records_per_s(found: dict[str, Way], batches: Sequence[StoredBatch], seconds: float) -> dict[str, float]:
    """The best rate of each way; they take turns for `seconds` each."""
    best = dict.fromkeys(found, 0.0)
    spent = dict.fromkeys(found, 0.0)
    while min(spent.values()) < seconds:
        for name, way in found.items():
            if spent[name] >= seconds:
                continue
            started = time.perf_counter()
            count = way(batches)
            took = time.perf_counter() - started
            spent[name] += took
            best[name] = max(best[name], count / took)
    return best


def measure(seconds: float) -> list[dict[str, Any]]:
    """One row a work: the rate of each way, and how many times the slowest it is."""
    found = ways()
    records_per_s(found, group(100, Codec.NONE, 10), 0.01)  # compiles
    rows = []
    for title, value_bytes, codec, batch_records in WORKS:
        rates = records_per_s(found, group(value_bytes, codec, batch_records), seconds)
        rows.append({"title": title, "records_per_s": {name: round(rate) for name, rate in rates.items()}})
    return rows


def below_floors(rows: Iterable[dict[str, Any]]) -> list[str]:
    """What the first work's ratios fall short of."""
    rates = next(iter(rows))["records_per_s"]
    return [
        f"numpy is {rates['numpy'] / rates[name]:.1f} times {name}, the floor is {floor}"
        for name, floor in FLOORS.items()
        if rates["numpy"] < floor * rates[name]
    ]


def main(args: argparse.Namespace) -> int:
    """Measure and print; with `--check`, 1 below the floors."""
    rows = measure(args.seconds)
    for row in rows:
        print(json.dumps(row), flush=True)
    short = below_floors(rows)
    for line in short:
        print(line, flush=True)
    return int(args.check and bool(short))
