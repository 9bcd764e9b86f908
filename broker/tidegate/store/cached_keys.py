"""The key names of groups and partitions, derived once and cached up to a share of memory."""

from __future__ import annotations

from tidegate.errors import InvalidGroupId
from tidegate.store.bounded_cache import BoundedCache
from tidegate.store.keys import BATCH_FORMAT, GROUP_ID_LENGTH_MAX, GroupKeys, LogKeys


class CachedKeys:
    """Key names of one cluster; the groups' and the logs' may hold `bytes_max` each."""

    def __init__(self, prefix: str, shards: int, bytes_max: int) -> None:
        self._prefix = prefix
        self._shards = shards
        self._groups: BoundedCache[tuple[str, str], GroupKeys] = BoundedCache(bytes_max)
        self._logs: BoundedCache[tuple[str, str, int, str, str], LogKeys] = BoundedCache(bytes_max)

    def of_group(self, org: str, group_id: str) -> GroupKeys:
        """The keys of a group. Raises InvalidGroupId for an id of more than GROUP_ID_LENGTH_MAX characters."""
        keys = self._groups.get((org, group_id))
        if keys is None:
            if len(group_id) > GROUP_ID_LENGTH_MAX:
                raise InvalidGroupId(f"the group id has {len(group_id)} characters, of {GROUP_ID_LENGTH_MAX} at most")
            keys = GroupKeys.of(self._prefix, self._shards, org, group_id)
            self._groups.put((org, group_id), keys, keys.held_bytes)
        return keys

    def of_stored_group(self, org: str, group_id: str) -> GroupKeys:
        """The keys of a group that Redis has, which may have a longer id: earlier versions took them."""
        if len(group_id) > GROUP_ID_LENGTH_MAX:
            return GroupKeys.of(self._prefix, self._shards, org, group_id)
        return self.of_group(org, group_id)

    def of_log(self, org: str, topic: str, partition: int, topic_id: str, log_format: str = BATCH_FORMAT) -> LogKeys:
        """The keys of a partition's log."""
        key = org, topic, partition, topic_id, log_format
        keys = self._logs.get(key)
        if keys is None:
            keys = LogKeys.of(self._prefix, org, topic, partition, topic_id, log_format)
            self._logs.put(key, keys, keys.held_bytes)
        return keys
