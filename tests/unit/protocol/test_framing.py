"""Frames come out as they went in, however the bytes arrive."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.framing import HEAP_BYTES_MAX, LARGE_BYTES, STEP_BYTES, FrameError, Splitter

FRAME_BYTES_MAX = 1 << 20
PIECES_MAX = 5_000
"""Of an example: one in single bytes may have more than a million, which took minutes."""


def receive(splitter: Splitter, data: bytes, trims: list[int]) -> list[bytes]:
    """Give the bytes as a socket would: no more than the buffer has space for, in pieces of the given sizes."""
    frames, position, iteration = [], 0, 0
    while position < len(data):
        size = max(1, trims[iteration % len(trims)])
        iteration += 1
        free = splitter.own_buffer()
        if free is not None:
            piece = data[position : position + min(size, len(free))]
            free[: len(piece)] = piece
            splitter.wrote(len(piece))
        else:
            piece = data[position : position + size]
            splitter.feed(piece)
        position += len(piece)
        while (taken := splitter.take()) is not None:
            bytes_, start, end = taken
            frames.append(bytes(bytes_[start:end]))
        if splitter.wanted:
            splitter.allocate()
    return frames


sizes = st.integers(0, 200) | st.integers(LARGE_BYTES - 5, LARGE_BYTES + 5) | st.just(200_000)


@settings(deadline=None)
@given(frame_sizes=st.lists(sizes, max_size=8), trims=st.lists(st.integers(1, 100_000), min_size=1, max_size=10))
def test_frames_survive_any_cutting(frame_sizes: list[int], trims: list[int]) -> None:
    frames = [bytes((index + 1,)) * size for index, size in enumerate(frame_sizes)]
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    splitter = Splitter(FRAME_BYTES_MAX)
    pieces = [max(trim, len(data) // PIECES_MAX) for trim in trims]
    assert receive(splitter, data, pieces) == frames
    assert not splitter.partial


def test_single_bytes() -> None:
    frames = [b"abc", b"", b"x" * 300]
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    assert receive(Splitter(FRAME_BYTES_MAX), data, [1]) == frames


@pytest.mark.parametrize("size", [-1, -(2**31), FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_length_that_no_frame_has(size: int) -> None:
    splitter = Splitter(FRAME_BYTES_MAX)
    splitter.feed(struct.pack(">i", size))
    with pytest.raises(FrameError):
        splitter.take()


def test_largest_frame_is_taken() -> None:
    frame = b"z" * FRAME_BYTES_MAX
    assert receive(Splitter(FRAME_BYTES_MAX), struct.pack(">i", len(frame)) + frame, [65_536]) == [frame]


def test_large_frame_is_received_into_its_own_buffer() -> None:
    splitter = Splitter(FRAME_BYTES_MAX)
    splitter.feed(struct.pack(">i", 500_000) + b"a" * 10)
    assert splitter.take() is None
    assert splitter.wanted == STEP_BYTES + 10
    splitter.allocate()
    free = splitter.own_buffer()
    assert free is not None and len(free) == STEP_BYTES
    splitter.wrote(STEP_BYTES)
    assert splitter.wanted == 500_000 - STEP_BYTES - 10
    splitter.allocate()
    free = splitter.own_buffer()
    assert free is not None and len(free) == 500_000 - STEP_BYTES - 10
    assert splitter.reserved == 500_000


@pytest.mark.parametrize("size", [HEAP_BYTES_MAX, HEAP_BYTES_MAX + 1])
def test_frame_is_received_whole_from_heap_and_mapping(size: int) -> None:
    frame = (bytes(range(251)) * (size // 251 + 1))[:size]
    assert receive(Splitter(2 * HEAP_BYTES_MAX), struct.pack(">i", size) + frame, [100_000]) == [frame]


def test_announced_bytes_above_the_heap_limit_are_not_resident() -> None:
    announced = 1 << 30
    splitter = Splitter(announced)
    before = _resident_bytes()
    splitter.feed(struct.pack(">i", announced) + b"a" * 10)
    assert splitter.take() is None
    splitter.allocate()
    free = splitter.own_buffer()
    assert free is not None
    free[:] = b"b" * len(free)
    assert _resident_bytes() - before < announced // 8


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize()
