"""How offsets are stored and how groups are filtered, without a store."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.groups.directory import ListedGroup, matches, metadata_of
from tidegate.groups.model import pack_protocols
from tidegate.groups.offsets import Committed, entry_json, metadata_fits, offset_field, parse_entry, split_field

TOPIC_ID = "0123456789abcdef" * 2


@given(
    offset=st.integers(-(1 << 63), (1 << 63) - 1),
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    metadata=st.text(st.characters(exclude_categories=["Cs"])),
    tail=st.sampled_from([',"commit_time":1700000000000}', ',"commit_time":1,"expire_time":2}']),
)
def test_stored_offset_reads_back_and_is_json(offset: int, leader_epoch: int, metadata: str, tail: str) -> None:
    value = entry_json(offset, leader_epoch, TOPIC_ID, metadata) + tail
    assert parse_entry(value.encode()) == Committed(offset, leader_epoch, metadata, TOPIC_ID)
    assert json.loads(value)["metadata"] == metadata


@given(metadata=st.text(st.characters(exclude_categories=["Cs"]), max_size=12), units_max=st.integers(0, 12))
def test_metadata_is_counted_in_utf_16_units(metadata: str, units_max: int) -> None:
    assert metadata_fits(metadata, units_max) is (len(metadata.encode("utf-16-le")) // 2 <= units_max)


@given(
    topic=st.from_regex(r"\A[a-zA-Z0-9._-]{1,249}\Z"),
    partition=st.integers(0, 100_000),
)
def test_field_names_topic_and_partition(topic: str, partition: int) -> None:
    assert split_field(offset_field(topic, partition)) == (topic, partition)


@given(
    protocols=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.binary(max_size=30)),
        unique_by=lambda one: one[0],
    )
)
def test_members_metadata_is_found_by_protocol(protocols: list[tuple[str, bytes]]) -> None:
    packed = pack_protocols(protocols)
    assert [metadata_of(packed, name) for name, _ in protocols] == [metadata for _, metadata in protocols]
    assert metadata_of(packed, "of nobody at all") == b""


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        (set(), set(), True),
        ({"empty", "stable"}, set(), True),
        ({"empty"}, set(), False),
        ({"nope"}, set(), False),
        (set(), {"classic"}, True),
        (set(), {" classic "}, False),
        ({"stable"}, {"consumer"}, False),
        ({"empty"}, {"classic"}, False),
        ({"stable"}, {"share", "classic"}, True),
    ],
)
def test_filters_of_a_list(states: set[str], types: set[str], listed: bool) -> None:
    assert matches(ListedGroup("g", "classic", "Stable", "consumer"), states, types) is listed
