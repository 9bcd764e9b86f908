"""The options of Spark's Kafka connector that have another name here, no effect, or no meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate_pipeline.errors import UsageError

RENAMED: Final = {"kafka.isolation.level": "isolation"}
WITHOUT_EFFECT: Final = frozenset(
    {"groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"}
)
"""About consumers, which the source has not; `redis.retry` is how long it waits."""
_REASONS: Final = {
    "kafka.bootstrap.servers": "it reads Redis, redis.url names it",
    "kafka.group.id": "it has no consumer group, its offsets are in the query's checkpoint",
}


def from_connector(given: Mapping[str, str]) -> dict[str, str]:
    """The options that have an effect, renamed. Raises UsageError for a `kafka.` option without meaning."""
    options = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered in RENAMED:
            options[RENAMED[lowered]] = value
        elif lowered.startswith("kafka."):
            reason = _REASONS.get(lowered, "it reads Redis and the archive, without brokers")
            raise UsageError(f"{name} has no meaning for the source tidegate: {reason}")
        elif lowered not in WITHOUT_EFFECT:
            options[name] = value
    return options
