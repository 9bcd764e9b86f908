"""Query Redis sentinels for the primary. Brokers without sentinels do not import redis-py for this."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
import redis.exceptions

from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.store.addresses import Topology
from tidegate.store.clients import login, sentinel_clients
from tidegate.store.tls import tls_files

LATE_MS: Final = 250
"""How long to wait for the remaining sentinels once most have answered."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SentinelReport:
    """One sentinel's answer: the primary's address, its fail-over epoch, and whether the sentinel considers it up."""

    place: Place
    config_epoch: int
    up: bool


def validated(views: Sequence[SentinelReport]) -> Place | None:
    """The primary by the sentinels' answers; None if no sentinel considers it up.

    A fail-over increments `config_epoch`, and sentinels learn it from each other: a lower epoch is out of date. Between
    equal epochs (sentinels configured by hand for different servers) the majority decides, then the `redis_url` order.
    """
    up = [view for view in views if view.up]
    named = Counter((view.config_epoch, view.place) for view in up)
    return max(up, key=lambda view: (view.config_epoch, named[view.config_epoch, view.place])).place if up else None


class Sentinels:
    """The sentinels of `redis_url`, queried concurrently. One query at a time."""

    def __init__(self, settings: Settings, topology: Topology) -> None:
        self._topology = topology
        timeout_s = settings.redis_connect_timeout_ms / 1000
        options = login(
            settings.redis_sentinel_username,
            settings.redis_sentinel_password,
            timeout_s,
            tls_files(settings, topology) if topology.tls else None,
        )
        self._timeout_s = timeout_s
        self._clients = sentinel_clients(topology.hosts, options)

    async def primary(self) -> Place:
        """Host and port of the current primary. Raises StoreUnavailable."""
        answers = await self._answers()
        found = validated([answer for answer in answers if isinstance(answer, SentinelReport)])
        if found is None:
            raise StoreUnavailable(self._unknown(answers))
        return found

    async def close(self) -> None:
        """Close the connections to them."""
        for client in self._clients:
            await client.aclose()

    async def _answers(self) -> list[SentinelReport | Exception]:
        """Each sentinel's answer, in the order of `redis_url`; a late one has a timeout error."""
        asked = [asyncio.create_task(self._ask(client)) for client in self._clients]
        loop = asyncio.get_running_loop()
        ends_s, waiting = loop.time() + self._timeout_s, set(asked)
        try:
            while waiting and (left_s := ends_s - loop.time()) > 0:
                _, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if sum(task.done() and isinstance(task.result(), SentinelReport) for task in asked) * 2 > len(asked):
                    _, waiting = await asyncio.wait(waiting, timeout=LATE_MS / 1000) if waiting else (set(), waiting)
                    break
        finally:
            for task in asked:
                task.cancel()  # closes its connection: the next query must not read this reply
        return [task.result() if task.done() else TimeoutError("no answer in time") for task in asked]

    async def _ask(self, client: redis.asyncio.Redis) -> SentinelReport | Exception:
        try:
            reported: Any = await client.sentinel_master(self._topology.service)
            # The sentinel that leads a fail-over describes the old primary under the new epoch, but names the new one.
            place: Any = await client.sentinel_get_master_addr_by_name(self._topology.service)
        except (redis.exceptions.RedisError, OSError) as error:
            return error
        described = (reported["ip"], reported["port"])
        up = reported["is_master"] and not reported["is_sdown"] and not reported["is_odown"]
        return SentinelReport(place or described, reported["config-epoch"], up or place != described)

    def _unknown(self, answers: Sequence[SentinelReport | Exception]) -> str:
        hosts = ", ".join(f"{host}:{port}" for host, port in self._topology.hosts)
        why = next((str(answer) for answer in answers if isinstance(answer, Exception)), "")
        reported = f" (one reports: {why})" if why else ""
        return f"no sentinel of {hosts} answers and names a primary of {self._topology.service!r} that is up{reported}"
