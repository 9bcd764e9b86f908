"""Time that a test steps: scripts read it from a key instead of Redis's clock."""

from __future__ import annotations

from broker.store import scripts
from broker.store.store import Store

KEY = "test:now_ms"
START_MS = 1_700_000_000_000

_STEPPED = """
local function now_ms()
  return tonumber(redis.call("GET", "test:now_ms"))
end
"""


def install() -> None:
    """Make every script rendered from now on read the stepped clock. Call before a Store starts."""
    scripts.swap_include("lib/clock", _STEPPED)


def uninstall() -> None:
    """Give the scripts Redis's clock back."""
    scripts.swap_include("lib/clock", None)


class SteppedClock:
    """The clock of one store. `advance(ms)` is the only thing that moves it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now_ms = START_MS

    async def set(self) -> None:
        """Write the present time for the scripts."""
        await self._store.command("SET", KEY, self.now_ms)

    async def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass."""
        self.now_ms += ms
        await self.set()
