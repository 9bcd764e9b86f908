"""Find out in Redis whether a log may have records to delete, without loading it.

Any broker takes any partition for its upkeep: if it loaded the log each time, each broker would have the state of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.log.retention import Rule
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.store.keys import LogKeys
    from tidegate.store.store import Store
    from tidegate.topics.configs import TopicConfig

CHECK_RETENTION: Final = Script("log/check_retention")


class RetentionCheck(NamedTuple):
    """Where a log begins and ends, and its oldest entry in Redis; `max_timestamp` in ms, -1 for none."""

    log_start: int
    local_start: int
    log_end: int
    local_bytes: int
    is_estimate: int
    max_timestamp: int
    ends_well: int
    """0 if the stream does not end with an entry that a broker appended."""

    def is_due(self, config: TopicConfig, now_ms: int) -> bool:
        """Whether the log has to be loaded: it may have records to delete, is compacted or tiered, or is damaged."""
        if not self.ends_well or "compact" in config.cleanup_policy or self._is_tiered(config):
            return True
        is_limited = config.retention_bytes >= 0
        if self.local_bytes < 0 or (self.is_estimate and is_limited):
            return True
        rule = Rule.of(now_ms, config.retention_ms, config.retention_bytes).over(self.local_bytes)
        has_records = self.local_start < self.log_end
        return has_records and (rule.takes(1, self.max_timestamp) or rule.undated(self.max_timestamp))

    def _is_tiered(self, config: TopicConfig) -> bool:
        return config.remote_storage or self.log_start < self.local_start


async def check_retention(store: Store, keys: LogKeys) -> RetentionCheck:
    """Read it. Raises UnknownTopicOrPartition, KafkaStorageError, StoreUnavailable."""
    return RetentionCheck._make(await store.run(CHECK_RETENTION, [keys.log, keys.meta]))
