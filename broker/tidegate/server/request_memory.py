"""A connection's requests count in the memory that those of all connections share."""

from __future__ import annotations

from typing import Any

from tidegate.apis.call import Client
from tidegate.protocol.framing import Splitter
from tidegate.protocol.primitives import Buffer
from tidegate.server.pending_request import PendingRequest


class RequestMemory:
    """Part of a connection."""

    client: Client
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
        held, counted = self.server.request_bytes, type(data) is memoryview
        if pending.answer is not None:
            held.release(size)
        else:
            pending.held = size
            if not counted:
                held.count_small(size)

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
