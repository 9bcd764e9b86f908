"""Notes of the groups whose committed offsets changed, for the broker that samples lag: it reads no other idle group.

Changes of members and generations need no note: the scripts that make them publish them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidegate.store.keys import ClusterKeys
from tidegate.store.link import Arg

NOTE_AFTER_S: Final = 1.0
"""How long a change may wait for its note; a group that commits all the time is noted as often."""

Send = Callable[[list[Arg], Callable[[Any], None]], object]


class ChangedGroups:
    """The groups that this broker changed and has not noted yet; none while nobody samples them."""

    def __init__(self, send: Send, keys: ClusterKeys, sample_interval_ms: int) -> None:
        self._send, self._key, self._are_sampled = send, keys.changed_groups, sample_interval_ms > 0
        self._groups: dict[str, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ref: str) -> None:
        """The offsets of a group (its name in the shard's keys) were changed."""
        if not self._are_sampled:
            return
        self._groups[ref] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NOTE_AFTER_S, self.flush)

    def flush(self) -> None:
        """Note what changed. A lost note delays that group's sample until idle groups are read, minutes at most."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        groups, self._groups = self._groups, {}
        if groups:
            note(self._send, self._key, groups)


def note(send: Send, key: str, names: Iterable[str]) -> None:
    """Add names to a sorted set of notes. Nobody waits for it: what reads them reads the rest too, more rarely."""
    args: list[Arg] = ["ZADD", key]
    for name in names:
        args += (0, name)
    send(args, _ignore)


def _ignore(_: Any) -> None:
    """Discard the reply."""
