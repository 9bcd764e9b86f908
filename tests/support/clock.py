"""Time that a test steps: scripts read it from a key instead of Redis's clock."""

from __future__ import annotations

from tests.support.includes import replace_include
from tidegate.store.store import Store

KEY = "test:now_ms"
START_MS = 1_700_000_000_000

_STEPPED = """
local function now_ms()
  return tonumber(redis.call("GET", "test:now_ms"))
end
"""


_BY_SLOT = """
local function now_ms()
  return tonumber(redis.call("GET", "test:now_ms" .. string.match(KEYS[1], "{[^}]+}")))
end
"""
_TAGS = (
    "cluster",
    *(f"co:{shard}" for shard in range(50)),
    *(f"default/{name}:{at}" for name in ("orders", "t") for at in range(3)),
)
"""Of keys whose scripts ask for the time: in Redis Cluster each slot has a clock of its own."""


def install(by_slot: bool = False) -> None:
    """Make every script rendered from now on read the stepped clock. Call before a Store starts."""
    replace_include("lib/now_ms", _BY_SLOT if by_slot else _STEPPED)


def uninstall() -> None:
    """Give the scripts Redis's clock back."""
    replace_include("lib/now_ms", None)


class SteppedClock:
    """The clock of one store. `advance(ms)` is the only thing that moves it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now_ms = START_MS

    async def set(self) -> None:
        """Write the present time for the scripts."""
        keys = [KEY] if self._store.cluster is None else [f"{KEY}{{{tag}}}" for tag in _TAGS]
        for key in keys:  # one after the other: `tests.support.acl` sees by the caller whose command it is
            await self._store.command("SET", key, self.now_ms)

    async def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self.now_ms += ms
        await self.set()
