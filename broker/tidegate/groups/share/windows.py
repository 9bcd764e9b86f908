"""The fetches of one broker that read behind the window of a share-partition, one after the other.

All would read the same batches and offer them to the script, which takes them from one of them. Whoever follows
begins where the one before has ended. Fetches at other brokers are refused by the script, and read again.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from tidegate.groups.share.sessions import SharePartition
from tidegate.store.keys import GroupKeys


class Window:
    """One share-partition while fetches hold its lock or wait for it. `epoch` and `end` are those last read."""

    __slots__ = ("__weakref__", "end", "epoch", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.epoch, self.end = "", -1

    def end_of(self, epoch: str, end: int) -> int:
        """Where the window ends for a fetch that read so before it had the lock."""
        return max(end, self.end) if epoch == self.epoch else end


class Windows:
    """The windows of one broker that fetches use now."""

    def __init__(self) -> None:
        self._windows: WeakValueDictionary[tuple[str, SharePartition], Window] = WeakValueDictionary()

    def of(self, keys: GroupKeys, partition: SharePartition) -> Window:
        """The window of a share-partition; it is forgotten when no fetch refers to it."""
        name = (keys.group, partition)
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = Window()
        return window
