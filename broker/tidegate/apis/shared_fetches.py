"""One Fetch response for all requests that wait for the same records: encoded once, sent to each.

Only throttle time, error code and session id precede the topics, so the responses of two sessions differ in the four
bytes of the session id alone. The bytes live as long as the replies that contain them; records above
`log_writers.INLINE_BYTES_MAX` are the tail cache's own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.protocol import log_writers
from tidegate.protocol.log_writers import FetchPartition
from tidegate.protocol.primitives import INT32

if TYPE_CHECKING:
    from tidegate.log.read import Slice
    from tidegate.protocol.log_writers import Body
    from tidegate.topics.model import Topic

READ_COMMITTED: Final = 1
ZSTD_FROM: Final = 10
_NO_SESSION: Final = 0
_SESSION_AT: Final = 6
_SESSION_END: Final = 10


class FetchKey(NamedTuple):
    """What the answer to a waiting fetch depends on, beside the log, if one partition has records and it alone changed.

    `topic` is the topic's name, or the 16 bytes of its id; epochs are -1 where the client sent none.
    """

    version: int
    isolation: int
    topic: str | bytes
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int
    last_epoch: int


class SharedAnswer:
    """The response for one `FetchKey`. `body` is that without a session."""

    __slots__ = ("_first", "_rest", "body", "found", "key", "topic")

    def __init__(self, topic: Topic, key: FetchKey, found: Slice) -> None:
        aborted = list(found.aborted) if key.isolation == READ_COMMITTED else None
        result = FetchPartition(
            key.partition, 0, found.high_watermark, found.last_stable_offset, found.log_start_offset,
            aborted, found.buffers, found.size,
        )  # fmt: skip
        first, *rest = log_writers.fetch(key.version, 0, _NO_SESSION, [(key.topic, [result])])
        self.topic = topic
        self.key = key
        self.found = found
        self._first = bytes(first)
        self._rest = rest
        self.body: bytes | Sequence[Body] = [self._first, *rest] if rest else self._first

    def in_session(self, session_id: int) -> bytes | Sequence[Body]:
        """The response in a fetch session; v7 and later."""
        first = self._first[:_SESSION_AT] + INT32(session_id) + self._first[_SESSION_END:]
        return [first, *self._rest] if self._rest else first
