"""The setting `durability`: the command that proves it for the writes of a connection, and what its reply must be."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.store.link import Arg


class DurabilityLevel(NamedTuple):
    """`memory`, `replicated:<n>` or `fsynced[:<n>]`."""

    kind: str
    replicas: int

    @classmethod
    def of(cls, text: str) -> DurabilityLevel:
        """Parse the setting."""
        kind, _, count = text.partition(":")
        return cls(kind, int(count or 0))

    @property
    def immediate(self) -> bool:
        """Whether no proof is needed."""
        return self.kind == "memory"

    def wait(self, timeout_ms: int) -> list[Arg]:
        """WAIT or WAITAOF: they cover the writes of their own connection only."""
        if self.kind == "fsynced":
            return ["WAITAOF", 1, self.replicas, timeout_ms]
        return ["WAIT", self.replicas, timeout_ms]

    def holds(self, reply: Any) -> bool:
        """Whether so many have it."""
        if self.kind == "fsynced":
            return bool(reply[0] >= 1 and reply[1] >= self.replicas)
        return bool(reply >= self.replicas)
