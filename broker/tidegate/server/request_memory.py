"""A connection's requests count in the memory that those of all connections share."""

from __future__ import annotations

from collections import deque
from typing import Any

from tidegate.apis.call import Client
from tidegate.protocol.framing import Splitter
from tidegate.protocol.primitives import Buffer
from tidegate.server.limits import PENDING_BYTES
from tidegate.server.muting import MEMORY_FULL
from tidegate.server.pending_request import PendingRequest


class RequestMemory:
    """Part of a connection."""

    blocked: int
    client: Client
    pipeline: deque[PendingRequest]
    server: Any
    splitter: Splitter

    def resume(self) -> None:
        """Read again, if nothing else prevents it."""
        raise NotImplementedError

    def _pause(self) -> None:
        """Read no more."""
        raise NotImplementedError

    def _reserve(self, pending: PendingRequest, data: Buffer, size: int) -> None:
        """Count an unanswered request; a frame with its own buffer was counted when the buffer was allocated."""
        if pending.answer is not None:
            self.server.request_bytes.release(size)
        elif type(data) is memoryview:
            pending.held = size
        else:
            pending.held = size = size + PENDING_BYTES
            held = self.server.request_bytes
            if not held.count_small(size):
                self.blocked |= MEMORY_FULL
                held.pause(self, self._on_capacity)
                self.server.read_less()

    def _on_capacity(self) -> None:
        """The limit has capacity for small requests."""
        self.blocked &= ~MEMORY_FULL
        self.resume()

    def _unblock_answered(self) -> None:
        """Take a request, whatever the others have, when all of this client's are answered."""
        if self.blocked & MEMORY_FULL and not self.pipeline:
            self.blocked &= ~MEMORY_FULL
            self.server.request_bytes.unpause(self)

    def _reserve_frame(self) -> None:
        """Continue to read a partial frame, unless the connections together hold too many request bytes."""
        splitter = self.splitter
        if not splitter.wanted:
            return
        if self.server.request_bytes.reserve(self.client.host, self, splitter.wanted, self._on_reserved):
            splitter.allocate()
        else:
            self._pause()

    def _on_reserved(self) -> None:
        """The bytes that the partial frame waited for are reserved."""
        self.splitter.allocate()
        self.resume()
