"""The store as the domain sees it: run a script, send a command on the right lane, watch a channel.

Lanes are separate TCP connections, so that a large read never delays a heartbeat:
`control` scripts and small commands; `data_out` appends; `data_in` reads of the log;
`push` pub/sub; `durable` the write and WAIT that prove durability (design: docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, perf_counter
from typing import Any, Final

import hiredis
import structlog

from broker.errors import StoreUnavailable, from_code
from broker.settings import Settings
from broker.store.absence import Absence
from broker.store.keys import ClusterKeys, GroupKeys, LogKeys, ShardKeys
from broker.store.link import Arg, Link
from broker.store.primary import FOLLOW_MS, Primary
from broker.store.scripts import Script, registered
from broker.store.wakeups import Wakeups
from broker.telemetry.metrics import metrics
from broker.telemetry.supervised import Supervised

logger = structlog.get_logger()

_FAILURES_LOGGED_EVERY_S: Final = 1.0
_START_SLACK_S: Final = 0.2
"""An attempt that takes its whole time is to say why."""

OnScript = Callable[[Any], None]
"""Called once with a script's reply (a list; code first) or an exception instance."""


class Store:
    """The links of one broker to one Redis primary, its scripts, keys and wake-ups."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.prefix = settings.key_prefix
        self.cluster_keys = ClusterKeys(settings.key_prefix)
        self.primary = Primary(settings)
        self.control = self._link("control")
        self.absence = Absence(self.control)
        self.data_out = self._link("data-out")
        self.data_in = self._link("data-in")
        self.durable = self._link("durable")
        self.push = self._link("push", on_push=lambda message: self.wakeups.on_push(message))
        self.wakeups = Wakeups(self.push)
        self._failures: dict[str, tuple[float, int]] = {}
        self.links = (self.control, self.data_out, self.data_in, self.durable, self.push)
        self.control.on_up.append(self._load_scripts)
        self._loops = Supervised()

    def _link(self, name: str, on_push: Callable[[list[Any]], None] | None = None) -> Link:
        settings = self.settings
        return Link(
            name,
            self.primary.find,
            loading_probe_key=self.cluster_keys.info,
            primary_only=self.primary.by_sentinels,
            command_timeout_ms=settings.redis_command_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
            in_flight_max=settings.redis_in_flight_max,
            in_flight_bytes_max=settings.redis_in_flight_bytes_max,
            on_push=on_push,
        )

    # -- life

    async def start(self) -> None:
        """Connect every lane. Raises StoreUnavailable."""
        for link in self.links:
            link.start()
        timeout_s = self.settings.redis_connect_timeout_ms / 1000 + _START_SLACK_S
        if self.primary.by_sentinels:
            timeout_s *= 2  # they are asked first
            self._loops.every("redis-primary", FOLLOW_MS, self._follow_primary)
        try:
            for link in self.links:
                await link.wait_up(timeout_s)
        except StoreUnavailable:
            reason = next(link.last_error for link in self.links if not link.connected)
            await self.close()
            raise StoreUnavailable(reason) from None

    async def close(self) -> None:
        """Close every lane."""
        await self._loops.close()
        for link in self.links:
            await link.close()
        await self.primary.close()

    @property
    def available(self) -> bool:
        """Whether every lane is up now."""
        return all(link.connected for link in self.links)

    async def _follow_primary(self) -> None:
        """Sentinels that name another server are followed, also where the old one did not notice."""
        if not any(link.connected for link in self.links):
            return  # each link asks by itself
        found = await self.primary.find()
        for link in self.links:
            if link.address != found:
                link.reconnect("the sentinels name another primary")

    def leave_replica(self) -> None:
        """Redis says that it takes no writes: where sentinels know the primary, every lane goes there."""
        if self.primary.by_sentinels:
            for link in self.links:
                link.reconnect("it is a replica now")

    def _load_scripts(self, link: Link) -> None:
        refused: list[str] = []

        def loaded(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError) and not refused:  # the others would say the same
                refused.append(str(reply))
                self._loaded(reply)

        for script in registered():
            link.send(["SCRIPT", "LOAD", script.source], loaded)

    @staticmethod
    def _loaded(reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            logger.error("script_refused_by_redis", reason=str(reply))

    # -- keys

    def group_keys(self, org: str, group_id: str) -> GroupKeys:
        """The keys of a group."""
        return GroupKeys.of(self.prefix, self.settings.coordinator_shards, org, group_id)

    def shard_keys(self, shard: int) -> ShardKeys:
        """The keys that the groups of a shard share."""
        return ShardKeys(self.prefix, shard)

    def log_keys(self, org: str, topic: str, partition: int, topic_id: str) -> LogKeys:
        """The keys of a partition's log."""
        return LogKeys.of(self.prefix, org, topic, partition, topic_id)

    # -- scripts

    def send_script(self, script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        """Run a script; `on_reply` gets its reply as it is, or an exception instance. For the hot path."""
        meter, sent_s = metrics.script(script.label), perf_counter()

        def answered(reply: Any) -> None:
            meter.observe(perf_counter() - sent_s)
            if isinstance(reply, hiredis.ReplyError):
                text = str(reply)
                if text.startswith("NOSCRIPT"):
                    self._reload(script, keys, args, on_reply)
                else:
                    on_reply(self._failed(script, text))
            else:
                on_reply(reply)

        self.control.send(["EVALSHA", script.sha, len(keys), *keys, *args], answered)

    async def run(self, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
        """Run a script and return what follows its code. Raises the KafkaError of a code other than NONE."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def answered(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            elif reply[0] != 0:
                future.set_exception(from_code(reply[0]))
            else:
                future.set_result(reply[1:])

        self.send_script(script, keys, args, answered)
        return await future

    def _reload(self, script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        def again(reply: Any) -> None:
            if isinstance(reply, hiredis.ReplyError):
                on_reply(self._failed(script, str(reply)))
            else:
                on_reply(reply)

        self.control.send(["SCRIPT", "LOAD", script.source], self._loaded)
        self.control.send(["EVALSHA", script.sha, len(keys), *keys, *args], again)

    def _failed(self, script: Script, text: str) -> StoreUnavailable:
        """What Redis itself refused (full, read-only, loading, no rights, a fault of the script).

        Logged once a second and script, with how often it happened since: a hot script fails thousands of times.
        """
        if text.startswith("READONLY"):
            self.leave_replica()
        now_s = monotonic()
        logged_s, since = self._failures.get(script.name, (0.0, 0))
        if now_s - logged_s >= _FAILURES_LOGGED_EVERY_S:
            logger.error("script_failed", script=script.name, reason=text, times=since + 1)
            self._failures[script.name] = (now_s, 0)
        else:
            self._failures[script.name] = (logged_s, since + 1)
        return StoreUnavailable(text)

    # -- plain commands

    async def command(self, *args: Arg) -> Any:
        """One command on the control lane. Raises StoreUnavailable, also for an error reply."""
        return await _answer(self.control.call(*args))

    async def read(self, *args: Arg) -> Any:
        """One read that may be large, on the lane where it delays no heartbeat. Raises StoreUnavailable as well."""
        return await _answer(self.data_in.call(*args))


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except hiredis.ReplyError as error:
        raise StoreUnavailable(str(error)) from error
