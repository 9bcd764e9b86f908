"""Bytes from a socket -> whole frames, as they come. No I/O and no copy beyond one of each chunk.

Small frames are read where they lie in the chunk. A frame above LARGE_BYTES that has not come whole gets
a buffer of its own, into which the socket then writes directly (`room`).
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

LARGE_BYTES: Final = 32 * 1024
"""Frames above this size are received into their own buffer."""

STEP_BYTES: Final = 256 * 1024
"""What a large frame may fill before more of its buffer is asked for; then as much again as it has filled."""

LENGTH_BYTES: Final = 4
"""What is in front of each frame."""

_SIZE: Final = struct.Struct(">i").unpack_from


_TLS_HANDSHAKE: Final = b"\x16\x03"


class FrameError(Exception):
    """A length that no frame has: the connection closes at once."""


class TlsInstead(FrameError):
    """What came is the begin of a TLS handshake."""


class Splitter:
    """The bytes of one connection that are not yet frames."""

    __slots__ = ("_data", "_filled", "_frame_bytes_max", "_granted", "_large", "_position", "wanted")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._data = b""
        self._position = 0
        self._large: bytearray | mmap.mmap | None = None
        self._filled = 0
        self._granted = 0
        self.wanted = 0
        """Bytes that a large frame needs before more of it can be received: `allocate` them, or wait. Else 0."""

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return self._large is not None or len(self._data) > self._position

    @property
    def received(self) -> int:
        """Bytes that came and are not yet taken, with the length in front of a large frame."""
        return len(self._data) - self._position if self._large is None else self._filled + LENGTH_BYTES

    @property
    def reserved(self) -> int:
        """Bytes allocated for the large frame being received; 0 without one."""
        return self._granted

    @property
    def whole(self) -> bool:
        """Whether a large frame has come whole."""
        return self._large is not None and self._filled == len(self._large)

    def room(self) -> memoryview | None:
        """Where the socket may write the rest of a large frame; None: give chunks to `feed`."""
        return None if self._large is None else memoryview(self._large)[self._filled : self._granted]

    def wrote(self, count: int) -> None:
        """So many bytes were written into `room`."""
        self._filled += count
        if self._filled == self._granted and self._large is not None:
            self.wanted = min(self._granted, len(self._large) - self._granted)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the connection."""
        self._data = self._data[self._position :] + chunk if len(self._data) > self._position else chunk
        self._position = 0

    def allocate(self) -> None:
        """Let `wanted` bytes more of the large frame come; make its buffer first.

        A buffer above one step is mapped, so that it takes up what was written to it and not what was announced.
        """
        self._granted += self.wanted
        if self._large is not None:
            self.wanted = 0
            return
        begun = self._data[self._position + LENGTH_BYTES :]
        (size,) = _SIZE(self._data, self._position)
        self._large = bytearray(size) if size <= STEP_BYTES else mmap.mmap(-1, size)
        self._large[: len(begun)] = begun
        self._filled = len(begun)
        self._data, self._position, self.wanted = b"", 0, 0

    def take(self) -> tuple[bytes | memoryview, int, int] | None:
        """The next whole frame as (bytes, start, end), without its length. Raises FrameError."""
        if self._large is not None:
            return self._take_large()
        data, position = self._data, self._position
        available = len(data) - position
        if available < 4:
            return None
        (size,) = _SIZE(data, position)
        if not 0 <= size <= self._frame_bytes_max:
            kind = TlsInstead if data.startswith(_TLS_HANDSHAKE, position) else FrameError
            raise kind(f"a frame of {size} bytes")
        if available - 4 < size:
            if size > LARGE_BYTES:
                self.wanted = min(size, available - LENGTH_BYTES + STEP_BYTES)
            return None
        position += 4
        self._position = end = position + size
        return data, position, end

    def _take_large(self) -> tuple[memoryview, int, int] | None:
        large = self._large
        if large is None or self._filled < len(large):
            return None
        self._large, self._filled, self._granted = None, 0, 0
        return memoryview(large).toreadonly(), 0, len(large)
