"""Follow changes of what a broker caches: a message on a channel, or at the latest a poll, starts a read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from tidegate.errors import StoreUnavailable
from tidegate.store.batching import SingleFlight
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks

_RELOAD: Final = -1


class ChangeFollower:
    """`read` compares versions and reads what has changed; `on_doubt` makes it read in any case.

    It is called after a reconnection, when the same version may mean other contents. `on_failed` gets the reason why a
    read failed; the next one is made by the next message or poll. A lost message costs `poll_ms` at most.
    """

    def __init__(
        self,
        store: Store,
        channel: str,
        poll_ms: int,
        *,
        read: Callable[[], Awaitable[None]],
        on_doubt: Callable[[], None],
        on_failed: Callable[[StoreUnavailable], None],
    ) -> None:
        self._store, self._channel, self._poll_s = store, channel, poll_ms / 1000
        self._read, self._on_doubt, self._on_failed = read, on_doubt, on_failed
        self._changed = asyncio.Event()
        self._loops = BackgroundTasks()

    async def subscribe(self, connect_timeout_ms: int) -> None:
        """Wait for the subscription; what is read after it misses no later change."""
        subscribed = self._store.pubsub.listen(self._channel, self._on_message)
        with contextlib.suppress(TimeoutError):  # the poll covers lost messages
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await asyncio.shield(subscribed)

    def follow(self, name: str) -> None:
        """Read after each change from now on; `name` is the background task's."""
        self._loops.run(name, self._follow)

    async def close(self) -> None:
        """Stop following."""
        self._store.pubsub.forget(self._channel, self._on_message)
        await self._loops.close()

    def _on_message(self, payload: bytes | None) -> None:
        if payload is None:
            self._on_doubt()
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._read()
            except StoreUnavailable as error:
                self._on_failed(error)


class VersionedCopy:
    """Reads again what a version in `{cluster}:info` counts the changes of; `load` replaces the copy.

    `load` begins after the version was read, so that what it reads is at least as new. With `stored_version` 0, nothing
    is loaded while nothing was ever stored.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        channel: str,
        poll_ms: int,
        *,
        load: Callable[[], Awaitable[None]],
        on_failed: Callable[[StoreUnavailable], None],
        stored_version: int = _RELOAD,
    ) -> None:
        self._store, self._name, self._load = store, name, load
        self._stored_version = stored_version
        self._reads = SingleFlight[str]()
        self._follower = ChangeFollower(
            store, channel, poll_ms, read=self._read_once, on_doubt=self._reload, on_failed=on_failed
        )

    async def start(self, connect_timeout_ms: int) -> None:
        """Load the copy, then follow changes. Raises StoreUnavailable."""
        await self._follower.subscribe(connect_timeout_ms)
        await self._read()
        self._follower.follow(f"{self._name}-follow")

    async def close(self) -> None:
        """Stop following."""
        await self._follower.close()
        await self._reads.close()

    @property
    def version(self) -> int:
        """The stored version that the copy was read at, or after; negative while the copy is in doubt."""
        return self._stored_version

    async def refresh(self) -> None:
        """Read changes that were made before this call. Raises StoreUnavailable."""
        await self._read_once()
        await self._read_once()  # a read that was under way may have begun before this call

    async def _read_once(self) -> None:
        await self._reads.do("read", self._read)

    def _reload(self) -> None:
        self._stored_version = _RELOAD

    async def _read(self) -> None:
        field = f"{self._name.replace('-', '_')}_version"
        stored = int(await self._store.command("HGET", self._store.cluster_keys.info, field) or 0)
        if stored != self._stored_version:
            await self._load()
            self._stored_version = stored
