"""The key names of groups and partitions, derived once and cached up to a share of memory."""

from __future__ import annotations

from tidegate.store.bounded_cache import BoundedCache
from tidegate.store.keys import BATCH_FORMAT, CACHED_NAME_LENGTH_MAX, GroupKeys, LogKeys


class CachedKeys:
    """Key names of one cluster; the groups' and the logs' may hold `bytes_max` each."""

    def __init__(self, prefix: str, shards: int, bytes_max: int) -> None:
        self._prefix = prefix
        self._shards = shards
        self._groups: BoundedCache[tuple[str, str], GroupKeys] = BoundedCache(bytes_max)
        self._logs: BoundedCache[tuple[str, str, int, str, str], LogKeys] = BoundedCache(bytes_max)

    def of_group(self, org: str, group_id: str) -> GroupKeys:
        """The keys of a group."""
        keys = self._groups.get((org, group_id))
        if keys is None:
            keys = GroupKeys.of(self._prefix, self._shards, org, group_id)
            if len(group_id) <= CACHED_NAME_LENGTH_MAX:
                self._groups.put((org, group_id), keys, keys.held_bytes)
        return keys

    def of_log(self, org: str, topic: str, partition: int, topic_id: str, log_format: str = BATCH_FORMAT) -> LogKeys:
        """The keys of a partition's log."""
        key = org, topic, partition, topic_id, log_format
        keys = self._logs.get(key)
        if keys is None:
            keys = LogKeys.of(self._prefix, org, topic, partition, topic_id, log_format)
            self._logs.put(key, keys, keys.held_bytes)
        return keys
