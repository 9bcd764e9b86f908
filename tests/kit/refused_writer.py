"""A producer whose records every broker refuses: nobody may ever read one."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError

from tests.kit.writers import LibrdkafkaWriter

AHEAD_MS: Final = 40 * 86_400_000
"""Beyond what a topic takes (`message.timestamp.after.max.ms`), whichever clock is stepped."""


class RefusedWriter(LibrdkafkaWriter):
    """Now and then a record whose timestamp is far ahead. Not idempotent: each refusal would end a producer's epoch."""

    is_idempotent = False
    pause_s = 0.5

    def _produce(self, index: int) -> None:
        ahead_ms = time.time_ns() // 1_000_000 + AHEAD_MS
        self._send(index, timestamp=ahead_ms)

    def _on_error(self, error: KafkaError) -> None:
        """None is the end of such a producer."""
