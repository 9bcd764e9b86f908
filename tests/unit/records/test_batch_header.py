"""Offsets and structs of the batch header agree with the struct of the whole, and are in one module."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Final

import pytest

import tidegate
import tidegate_pipeline
from tidegate.records import batch_header as header

FIELDS: Final = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "record_count",
)  # fmt: skip
CODES: Final = header.HEADER.format.removeprefix(">")
STARTS: Final = dict(zip(FIELDS, accumulate((Struct(f">{code}").size for code in CODES), initial=0), strict=False))
AT: Final = re.compile(
    r"^_?(?:LENGTH|MAGIC|CRC|ATTRIBUTES\w*|LAST_DELTA|MAX_TIMESTAMP|PRODUCER\w*|RECORDS?|RECORD_COUNT|HEADER)_AT\b"
    r".*= \d|= 61\b",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (header.LENGTH_AT, "length"),
        (header.MAGIC_AT, "magic"),
        (header.CRC_AT, "crc"),
        (header.ATTRIBUTES_AT, "attributes"),
        (header.ATTRIBUTES_LOW_AT - 1, "attributes"),
        (header.LAST_DELTA_AT, "last_delta"),
        (header.MAX_TIMESTAMP_AT, "max_timestamp"),
        (header.PRODUCER_AT, "producer_id"),
        (header.RECORD_COUNT_AT, "record_count"),
    ],
)
def test_batch_header_offsets_are_those_of_the_fields(at: int, field: str) -> None:
    assert at == STARTS[field]


@pytest.mark.parametrize(
    ("part", "at"),
    [
        (header.PLACE, 0),
        (header.CRC_TO_LAST_DELTA, header.CRC_AT),
        (header.ATTRIBUTES_TO_SEQUENCE, header.ATTRIBUTES_AT),
        (header.PRODUCER, header.PRODUCER_AT),
    ],
)
def test_batch_header_structs_are_parts_of_the_whole(part: Struct, at: int) -> None:
    codes = "".join(code for code, start in zip(CODES, STARTS.values(), strict=True) if start >= at)

    assert codes.startswith(part.format.removeprefix(">"))
    assert (header.HEADER.size, header.PLACE.size) == (header.HEADER_BYTES, header.PLACE_BYTES)


def test_batch_header_is_described_in_one_module() -> None:
    packages = [Path(package.__path__[0]) for package in (tidegate, tidegate_pipeline)]
    sources = (path for package in packages for path in sorted(package.rglob("*.py")))

    assert [path.name for path in sources if AT.search(path.read_text("utf-8"))] == ["batch_header.py"]
