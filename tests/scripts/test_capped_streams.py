"""Places in capped streams on a real server: ranges, limits, what is cut and how that is seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.valkey import ValkeyServer
from tidegate.store.keys import ClusterKeys, ShardKeys
from tidegate_pipeline.errors import DataLoss, UsageError
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.sources.capped_streams import CappedStreams, Place, Places
from tidegate_pipeline.sources.events import EventsSource


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyServer]:
    """A Redis Cluster of one node."""
    server = ValkeyServer(["--cluster-enabled", "yes"])
    node = connect(server.url)
    node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    deadline = time.monotonic() + 30
    while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield server
    server.stop()


@pytest.fixture
def streams(client: Any) -> CappedStreams:
    """Streams a and b, of which a has the entries 1-0 to 10-0, b nothing."""
    add(client, "a", *range(1, 11))
    return CappedStreams(client, ["a", "b"])


def add(client: Any, stream: str, *ids: int) -> None:
    for number in ids:
        client.xadd(stream, {"n": number}, id=f"{number}-0")


def cut(client: Any, stream: str, kept: int) -> None:
    client.xtrim(stream, maxlen=kept, approximate=False)


def read(streams: CappedStreams, start: Places, end: Places) -> list[int]:
    return [
        int(fields[b"n"]) for entry_range in streams.entry_ranges(start, end) for _, fields in streams.read(entry_range)
    ]


def test_ranges_join_without_overlap(client: Any, streams: CappedStreams) -> None:
    start = streams.earliest()
    middle = streams.advance(start, None, 4)
    end = streams.advance(middle, None, None)

    assert middle == {"a": Place("4-0", 4), "b": Place()} and end["a"] == Place("10-0", 10)
    assert read(streams, start, middle) == [1, 2, 3, 4]
    assert read(streams, middle, end) == [5, 6, 7, 8, 9, 10]
    assert streams.advance(end, None, None) == end and streams.entry_ranges(end, end) == []
    add(client, "b", 3)  # a stream that was not there begins at its beginning
    assert read(streams, end, streams.advance(end, None, 1)) == [3]


def test_streams_of_a_redis_cluster(cluster: ValkeyServer) -> None:
    client = connect(f"redis+cluster://127.0.0.1:{cluster.port}")
    names = [ShardKeys("tidegate", shard).events for shard in range(20)]  # in twenty slots
    for name in names:
        add(client, name, 1, 2, 3)
    streams = CappedStreams(client, names)
    middle = streams.advance(streams.earliest(), None, 40)

    assert len(read(streams, streams.earliest(), middle)) == 40
    assert read(streams, middle, streams.latest()) == [3] * 20
    client.hset(ClusterKeys("tidegate").info, "coordinator_shards", 20)
    source = EventsSource({"redis.url": f"redis+cluster://127.0.0.1:{cluster.port}"})
    assert len(source.open().latest()) == 20


def test_limit_is_divided_and_a_target_is_reached(client: Any, streams: CappedStreams) -> None:
    add(client, "b", *range(1, 4))
    start, target = streams.earliest(), streams.latest()
    add(client, "a", 11, 12)
    add(client, "b", 4)

    assert streams.advance(start, target, 8) == {"a": Place("5-0", 5), "b": Place("3-0", 3)}
    places, observed = start, 0
    while (after := streams.advance(places, target, 1)) != places:
        observed += len(read(streams, places, after))
        places = after
    assert places == target and observed == 13
    assert streams.advance(start, target, None) == target  # ReadAllAvailable knows the target as well


def test_earliest_of_a_trimmed_stream_loses_nothing(client: Any, streams: CappedStreams) -> None:
    cut(client, "a", 3)
    start = streams.earliest()

    assert start["a"] == Place("0-0", 7)
    assert streams.advance(start, None, 2)["a"] == Place("9-0", 9)
    assert read(streams, start, streams.latest()) == [8, 9, 10]


def test_records_trimmed_before_they_were_read_are_counted(client: Any, streams: CappedStreams) -> None:
    start = streams.advance(streams.earliest(), None, 4)
    cut(client, "a", 3)
    end = streams.advance(start, None, 2)
    assert end["a"] == Place("9-0", 9)

    with pytest.raises(DataLoss, match=r"a: 3 entries \(of 5 after 4-0 up to 9-0\) were trimmed before"):
        read(streams, start, end)
    lenient = CappedStreams(client, ["a", "b"], fail_on_data_loss=False)
    assert read(lenient, start, end) == [8, 9]
    client.xadd("a", {"n": 11}, id="11-0")
    assert read(streams, end, streams.latest()) == [10, 11]


def test_trim_just_behind_the_reader_is_no_loss(client: Any, streams: CappedStreams) -> None:
    start = streams.advance(streams.earliest(), None, 7)
    cut(client, "a", 3)

    assert read(streams, start, streams.advance(start, None, None)) == [8, 9, 10]


def test_offset_range_trimmed_whole(client: Any, streams: CappedStreams) -> None:
    start, target = streams.earliest(), streams.latest()
    add(client, "a", *range(11, 20))
    cut(client, "a", 2)
    end = streams.advance(start, target, 3)

    assert end == target
    with pytest.raises(DataLoss, match="a: 10 entries"):
        read(streams, start, end)


def test_stream_with_lower_end_always_fails(client: Any) -> None:
    lenient = CappedStreams(client, ["a"], fail_on_data_loss=False)
    add(client, "a", *range(1, 11))
    start = lenient.latest()
    client.delete("a")
    for ids in ((), (5,), (20, 21)):  # emptied; an older copy; emptied and written again
        add(client, "a", *ids)
        with pytest.raises(DataLoss, match=r"a was truncated: .* begin with a new checkpoint"):
            lenient.advance(start, None, None)


def test_places_that_are_given(client: Any, streams: CappedStreams) -> None:
    assert streams.given({"a": "4-0"}) == {"a": Place("4-0", 4), "b": Place()}
    assert streams.given({"a": "4-7"})["a"] == Place("4-0", 4)
    assert streams.from_time(5)["a"] == Place("4-0", 4) and streams.from_time(0)["a"] == Place()
    cut(client, "a", 3)
    assert streams.given({"a": "0-0"}) == streams.from_time(2) == streams.earliest()
    assert streams.given({"a": "9-0"})["a"] == Place("9-0", 9)
    with pytest.raises(DataLoss, match="the first ones after 4-0"):
        streams.given({"a": "4-0"})
    with pytest.raises(UsageError, match="no such stream here: c"):
        streams.given({"c": "1-0"})


def test_place_beyond_one_walk(client: Any, streams: CappedStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate_pipeline.sources.capped_streams._WALK_MAX", 3)
    monkeypatch.setattr("tidegate_pipeline.sources.capped_streams.PAGE_ENTRIES", 3)

    assert streams.given({"a": "8-0"})["a"] == Place("8-0", 8)
    assert streams.advance(streams.earliest(), None, 9)["a"] == Place("3-0", 3)  # the rest comes with the next
    assert read(streams, streams.earliest(), streams.latest()) == list(range(1, 11))
