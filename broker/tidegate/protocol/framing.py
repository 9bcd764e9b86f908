"""Splits a connection's byte stream into frames. No I/O; each received chunk is copied at most once.

Small frames are read in place from the chunk. A partial frame above LARGE_BYTES gets its own buffer, into which the
socket then writes directly (`own_buffer`).
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

LARGE_BYTES: Final = 32 * 1024
"""Frames above this many bytes are received into their own buffer."""

STEP_BYTES: Final = 256 * 1024
"""Bytes of a large frame received before more buffer is reserved; each further step doubles the received bytes."""

HEAP_BYTES_MAX: Final = 4 << 20
"""Buffers up to this many bytes come from the heap, which reuses freed memory; the kernel zeroes each page of a mapping
when it is first written, which takes several times as long as receiving it."""

LENGTH_BYTES: Final = 4
"""Size of the length prefix of each frame."""

_SIZE: Final = struct.Struct(">i").unpack_from


_TLS_HANDSHAKE: Final = b"\x16\x03"

Frame = tuple[bytes | memoryview, int, int]
"""A buffer, and where a frame starts and ends in it, without its length prefix."""


class FrameError(Exception):
    """An invalid frame length; the connection is closed at once."""


class TlsHandshake(FrameError):
    """The received bytes start a TLS handshake."""


def _mapped(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Splitter:
    """Holds the received bytes of one connection that are not yet parsed."""

    __slots__ = ("_data", "_filled", "_granted", "_large", "_position", "frame_bytes_max", "wanted")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = b""
        self._position = 0
        self._large: bytearray | mmap.mmap | None = None
        self._filled = 0
        self._granted = 0
        self.wanted = 0
        """Bytes that must be reserved (`allocate`) before more of a large frame can be received; otherwise 0."""

    @property
    def partial(self) -> bool:
        """Whether a frame is partially received."""
        return self._large is not None or len(self._data) > self._position

    @property
    def received(self) -> int:
        """Received bytes that are not yet taken, including the length prefix of a large frame."""
        return len(self._data) - self._position if self._large is None else self._filled + LENGTH_BYTES

    @property
    def reserved(self) -> int:
        """Bytes reserved for the large frame being received; 0 without one."""
        return self._granted

    @property
    def whole(self) -> bool:
        """Whether a large frame is complete."""
        return self._large is not None and self._filled == len(self._large)

    def own_buffer(self) -> memoryview | None:
        """The writable part of a large frame's buffer; None when chunks must be passed to `feed`."""
        return None if self._large is None else memoryview(self._large)[self._filled : self._granted]

    def wrote(self, count: int) -> None:
        """`count` bytes were written into the buffer returned by `own_buffer`."""
        self._filled += count
        if self._filled == self._granted and self._large is not None:
            self.wanted = min(self._granted, len(self._large) - self._granted)

    def feed(self, chunk: bytes) -> None:
        """Append received bytes."""
        self._data = self._data[self._position :] + chunk if len(self._data) > self._position else chunk
        self._position = 0

    def allocate(self) -> None:
        """Reserve `wanted` more bytes of the large frame, and create its buffer on the first call.

        A buffer above HEAP_BYTES_MAX is an anonymous mapping, so its resident memory is what was received, not what
        was announced.
        """
        self._granted += self.wanted
        if self._large is not None:
            self.wanted = 0
            return
        begun = self._data[self._position + LENGTH_BYTES :]
        (size,) = _SIZE(self._data, self._position)
        self._large = bytearray(size) if size <= HEAP_BYTES_MAX else _mapped(size)
        self._large[: len(begun)] = begun
        self._filled = len(begun)
        self._data, self._position, self.wanted = b"", 0, 0

    def take(self) -> Frame | None:
        """The next complete frame as (buffer, start, end) without its length prefix, or None. Raises FrameError."""
        if self._large is not None:
            return self._take_large()
        data, position = self._data, self._position
        available = len(data) - position
        if available < 4:
            return None
        (size,) = _SIZE(data, position)
        if not 0 <= size <= self.frame_bytes_max:
            kind = TlsHandshake if data.startswith(_TLS_HANDSHAKE, position) else FrameError
            raise kind(f"a frame of {size} bytes")
        if available - 4 < size:
            if size > LARGE_BYTES:
                self.wanted = min(size, available - LENGTH_BYTES + STEP_BYTES)
            return None
        position += 4
        self._position = end = position + size
        return data, position, end

    def put_back(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Undo the last `take`, which returned these."""
        if isinstance(data, bytes):
            self._position = start - LENGTH_BYTES
        else:
            large = data.obj
            assert isinstance(large, bytearray | mmap.mmap)
            self._large = large
            self._filled = self._granted = end

    def _take_large(self) -> tuple[memoryview, int, int] | None:
        large = self._large
        if large is None or self._filled < len(large):
            return None
        self._large, self._filled, self._granted = None, 0, 0
        return memoryview(large).toreadonly(), 0, len(large)
