"""Which life of the server a broker's connections belong to.

Every reconnection asks its server for `master_replid`, and every connection again each second: a server can
be demoted and come back while a connection stays. Only when all lanes reach one and the same primary is
there an incarnation, and views may be loaded. The first broker to see a new id mints the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from broker.errors import StoreUnavailable
from broker.store.link import Link
from broker.store.scripts import Script
from broker.store.store import Store

logger = structlog.get_logger()

MINT_INCARNATION = Script("log/mint_incarnation")

_ASK_AGAIN_S: Final = 0.1
_CHECK_S: Final = 1.0


class Incarnations:
    """Follows the lanes that a view depends on.

    `on_lost` runs at once when any of them is gone, `on_known` whenever the incarnation is known again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes = (store.control, store.data_out, store.data_in, store.durable)
        self._replids: dict[Link, str] = {}
        self._current = asyncio.Event()
        self._number = 0
        self._closed = False
        self._check_timer: asyncio.TimerHandle | None = None
        self.on_lost: list[Callable[[], None]] = []
        self.on_known: list[Callable[[int], None]] = []

    def start(self) -> None:
        """Begin to follow the lanes."""
        for lane in self._lanes:
            lane.on_up.append(self._ask)
            lane.on_down.append(self._lost)
        self._check()

    def _check(self) -> None:
        self._check_timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        for lane in self._lanes:
            if lane.connected:
                self._ask(lane)

    def close(self) -> None:
        """Stop following."""
        self._closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        for lane in self._lanes:
            if self._ask in lane.on_up:
                lane.on_up.remove(self._ask)
                lane.on_down.remove(self._lost)

    async def ready(self) -> int:
        """The incarnation, when every lane is up and checked. Raises StoreUnavailable."""
        if not self._current.is_set():
            try:
                async with asyncio.timeout(self._store.settings.redis_connect_timeout_ms / 1000):
                    await self._current.wait()
            except TimeoutError:
                raise StoreUnavailable("no connection to one primary on every lane") from None
        return self._number

    @property
    def number(self) -> int | None:
        """The incarnation, or None while it is not known."""
        return self._number if self._current.is_set() else None

    def _lost(self, lane: Link) -> None:
        self._replids.pop(lane, None)
        self._current.clear()
        for listener in self.on_lost:
            listener()

    def _ask(self, lane: Link) -> None:
        connection = lane.incarnation
        lane.send(["INFO", "replication"], lambda reply: self._heard(lane, connection, reply))

    def _heard(self, lane: Link, connection: int, reply: Any) -> None:
        if self._closed or connection != lane.incarnation or not lane.connected:
            return
        facts = _parse_info(reply)
        replid = facts.get("master_replid", "") if facts.get("role") == "master" else ""
        if replid and self._current.is_set() and self._replids.get(lane) == replid:
            return
        if self._current.is_set():
            logger.warning("redis_is_another_primary", link=lane.name, role=facts.get("role"))
            self._lost(lane)
        if not replid:
            self._store.leave_replica()
            asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_again, lane, connection)
            return
        self._replids[lane] = replid
        if len(self._replids) < len(self._lanes):
            return
        if len(set(self._replids.values())) > 1:
            for other in self._lanes:
                asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._ask_again, other, other.incarnation)
            return
        self._mint(replid)

    def _ask_again(self, lane: Link, connection: int) -> None:
        if not self._closed and lane.connected and lane.incarnation == connection:
            self._ask(lane)

    def _mint(self, replid: str) -> None:
        connections = [lane.incarnation for lane in self._lanes]

        def minted(reply: Any) -> None:
            if self._closed or [lane.incarnation for lane in self._lanes] != connections:
                return
            if len(self._replids) < len(self._lanes):
                return
            if isinstance(reply, Exception):
                asyncio.get_running_loop().call_later(_ASK_AGAIN_S, self._mint_again, replid, connections)
                return
            if self._number not in (0, reply[1]):
                logger.warning("incarnation_changed", incarnation=reply[1], before=self._number)
            self._number = reply[1]
            self._current.set()
            for listener in self.on_known:
                listener(self._number)

        self._store.send_script(MINT_INCARNATION, [self._store.cluster_keys.info], [replid], minted)

    def _mint_again(self, replid: str, connections: list[int]) -> None:
        if not self._closed and [lane.incarnation for lane in self._lanes] == connections:
            self._mint(replid)


def _parse_info(reply: Any) -> dict[str, str]:
    if not isinstance(reply, bytes | str):
        return {}
    text = reply.decode() if isinstance(reply, bytes) else reply
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
