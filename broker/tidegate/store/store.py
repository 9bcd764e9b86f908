"""The interface of the domain to Redis: run a script, send a command to the node of its key, subscribe to a channel.

There is one node, except in Redis Cluster, where the key's slot determines the node (`redis_cluster.py`). Pub/sub uses
one connection: Redis Cluster forwards published messages to every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final

import hiredis
import structlog

from tidegate.errors import StoreUnavailable, from_code
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.cached_keys import CachedKeys
from tidegate.store.changed_groups import ChangedGroups
from tidegate.store.foreign_entries import ForeignEntries
from tidegate.store.keys import ClusterKeys, ShardKeys
from tidegate.store.link import Arg, Link, OnReply
from tidegate.store.loaded_scripts import REMOVE_INTERVAL_MS, LoadedScripts, on_script_loaded
from tidegate.store.node import Find, Node
from tidegate.store.outcome import Failure, Unknown, error_of_command, script_failure_of
from tidegate.store.primary import FOLLOW_MS, Primary
from tidegate.store.pubsub import PubSub
from tidegate.store.redirected import Redirected
from tidegate.store.redis_clock import RedisClock
from tidegate.store.redis_cluster import RedisCluster
from tidegate.store.scripts import Script
from tidegate.store.slots import is_refusal
from tidegate.store.wrong_types import WrongTypes
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

_FAILURES_LOGGED_EVERY_S: Final = 1.0
_START_SLACK_S: Final = 0.2
"""Added to the connect timeout, so that an attempt that times out can report its reason."""
_CHECK_INTERVAL_S: Final = 0.02
_KEYS_TRIED: Final = 2_000
"""Numbered keys tried until one is at the node; enough, most likely, for a node with 1 slot in 1,000."""

OnNode = Callable[[Node], None]
OnScript = Callable[[Any], None]
"""Called once with a script's reply (a list; code first) or with a `Failure`."""


class Store:
    """One broker's links to Redis, its scripts, keys and subscriptions. Raises CannotStart."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.prefix = settings.key_prefix
        self.cluster_keys = ClusterKeys(settings.key_prefix)
        self.clock = RedisClock()
        self.primary = Primary(settings)
        self.cluster: RedisCluster | None = None
        self.foreign_entries = ForeignEntries()
        self.loaded_scripts = LoadedScripts(lambda: self.nodes)
        self.wrong_types = WrongTypes(self.prefix, self.send)
        self.changed_groups = ChangedGroups(self.send, self.cluster_keys, settings.lag_sample_interval_ms)
        names = CachedKeys(settings.key_prefix, settings.coordinator_shards, shares_of(settings.memory_max).key_names)
        self.group_keys, self.log_keys, self.stored_group_keys = names.of_group, names.of_log, names.of_stored_group
        self.on_moved: list[Callable[[], None]] = []
        """Called when the node of some keys changed."""
        self._followers: list[tuple[OnNode, OnNode]] = []
        self._loops = BackgroundTasks()
        self._failures: dict[str, tuple[float, int]] = {}
        if self.primary.topology.kind == "cluster":
            self.cluster = self._cluster()
            self.metadata_node = self.cluster.metadata_node
            self.push = self._link("push", self.cluster.find_any)
            self.cluster.push = self.push
        else:
            self.metadata_node = self._node(self.primary.find)
            self.push = self._link("push", self.primary.find)
        self.pubsub = PubSub(self.push)

    def _link(self, name: str, find: Find) -> Link:
        settings = self.settings
        return Link(
            name,
            find,
            # In Redis Cluster a node would answer EXISTS with MOVED, even while it loads.
            loading_probe=["PING"] if self.cluster is not None else ["EXISTS", self.cluster_keys.info],
            primary_only=self.cluster is None,
            command_timeout_ms=settings.redis_command_timeout_ms,
            connect_timeout_ms=settings.redis_connect_timeout_ms,
        )

    def _node(self, find: Find) -> Node:
        node = Node(self._link, find)
        node.control.on_up.append(lambda _: self.loaded_scripts.load(node))
        return node

    def _cluster(self) -> RedisCluster:
        cluster = RedisCluster(self.primary.topology, self.primary.at, self._node, self.cluster_keys.info)
        cluster.on_added, cluster.on_removed, cluster.on_moved = self._added, self._removed, self._moved
        return cluster

    # -- nodes

    @property
    def nodes(self) -> list[Node]:
        """Every known primary."""
        return [self.metadata_node] if self.cluster is None else self.cluster.nodes

    @property
    def links(self) -> list[Link]:
        """Every lane of every node, and the pub/sub link."""
        return [*(lane for node in self.nodes for lane in node.lanes), self.push]

    def lanes(self) -> dict[str, list[Link]]:
        """Lane name -> its links, one per node."""
        found: dict[str, list[Link]] = {}
        for link in self.links:
            found.setdefault(link.name, []).append(link)
        return found

    @property
    def is_sharded(self) -> bool:
        """Whether the keys are distributed over several servers, each with its own clock."""
        return self.cluster is not None

    def node(self, key: str) -> Node:
        """The node that has the key now. Redis Cluster may move it at any time, see `on_moved`."""
        return self.metadata_node if self.cluster is None else self.cluster.node(key)

    def key_at(self, node: Node, preferred: str, elsewhere: Callable[[int], str], first: int = 0) -> str:
        """`preferred` if the node has that key, else the first `elsewhere(number)`, from `first`, that the node has."""
        if first == 0 and self.node(preferred) is node:
            return preferred
        names = (elsewhere(number) for number in range(first, first + _KEYS_TRIED))
        return next((name for name in names if self.node(name) is node), preferred)

    def follow_nodes(self, added: OnNode, removed: OnNode) -> None:
        """Call `added` for every node, now and before a new one connects, and `removed` for retired nodes."""
        self._followers.append((added, removed))
        for node in self.nodes:
            added(node)

    def refused(self, node: Node, text: str) -> None:
        """Process a refusal (`is_refusal`) of a Redis Cluster node: the key is elsewhere, or the slot unavailable."""
        if self.cluster is not None:
            self.cluster.refused(node, text)

    def _added(self, node: Node) -> None:
        node.control.on_down.append(lambda _: self._refresh_slots())
        for added, _ in self._followers:
            added(node)

    def _removed(self, node: Node) -> None:
        for _, removed in self._followers:
            removed(node)

    def _moved(self) -> None:
        if self.cluster is not None:
            self.metadata_node = self.cluster.metadata_node
        for listener in self.on_moved:
            listener()

    def _refresh_slots(self) -> None:
        if self.cluster is not None:
            self.cluster.refresh_soon()

    # -- lifecycle

    async def start(self) -> None:
        """Connect every lane. Raises StoreUnavailable, CannotStart."""
        timeout_s = self.settings.redis_connect_timeout_ms / 1000 + _START_SLACK_S
        try:
            if self.cluster is not None:
                await self._start_cluster(self.cluster, timeout_s)
            else:
                self.metadata_node.start()
                self.push.start()
            if self.primary.by_sentinels:
                timeout_s *= 2  # the sentinels are queried first
                self._loops.every("redis-primary", FOLLOW_MS, self._follow_primary)
            for link in self.links:
                await link.wait_up(timeout_s)
            self._loops.every("redis-libraries", REMOVE_INTERVAL_MS, self.loaded_scripts.remove_old_libraries)
        except (StoreUnavailable, CannotStart) as error:
            reason = next((link.last_error for link in self.links if not link.connected), "")
            await self.close()
            if isinstance(error, CannotStart):
                raise
            raise StoreUnavailable(reason or str(error)) from None

    async def _start_cluster(self, cluster: RedisCluster, timeout_s: float) -> None:
        self.push.start()
        await self.push.wait_up(timeout_s * len(self.primary.topology.hosts))  # tried in turn; some may not respond
        await cluster.first_refresh(timeout_s)
        self._loops.run("redis-cluster", cluster.follow)
        self._loops.every("redis-clocks", FOLLOW_MS, cluster.ask_times)

    async def close(self) -> None:
        """Close every lane."""
        self.changed_groups.flush()
        await self._loops.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.metadata_node.close()
        await self.push.close()
        await self.primary.close()

    @property
    def available(self) -> bool:
        """Whether every lane is up now; in Redis Cluster, every lane of the node with the cluster's keys."""
        return self.metadata_node.up and (self.cluster is not None or self.push.connected)

    async def wait_up(self, key: str) -> None:
        """Wait until the node of the key is connected, up to the command timeout. Raises StoreUnavailable."""
        timeout_s = self.settings.redis_command_timeout_ms / 1000
        if self.cluster is None:
            await self.metadata_node.control.wait_up(timeout_s)
            return
        until = monotonic() + timeout_s
        while not self.node(key).control.connected:  # another node may take its place
            if monotonic() > until:
                raise StoreUnavailable(f"Redis is not reachable: {self.node(key).control.last_error}")
            await asyncio.sleep(_CHECK_INTERVAL_S)

    async def _follow_primary(self) -> None:
        """Reconnect when the sentinels name another primary, even if the old connections are intact."""
        if not any(link.connected for link in self.links):
            return  # each link calls find by itself
        found = await self.primary.find()
        for link in self.links:
            if link.address != found:
                link.reconnect("the sentinels name another primary")

    def reconnect_to_primary(self) -> None:
        """Reconnect every lane after a read-only error: the address may name another primary by now."""
        self._refresh_slots()
        if self.cluster is None and self.primary.may_reconnect():
            self.metadata_node.leave("it is a replica now")
            self.push.reconnect("it is a replica now")

    # -- keys

    def shard_keys(self, shard: int) -> ShardKeys:
        """The keys that the groups of a shard share."""
        return ShardKeys(self.prefix, shard)

    # -- scripts

    def send_script(self, script: Script, keys: Sequence[str], args: Sequence[Arg], on_reply: OnScript) -> None:
        """Run a script; `on_reply` gets the raw reply, or a `Failure`. For the hot path."""
        meter, sent_s = metrics.script(script.label), perf_counter()
        node = self.metadata_node if self.cluster is None else self.cluster.node(keys[0])
        is_function = script.is_function and node.has_functions
        if not is_function and node.unknown_scripts:
            self.loaded_scripts.load_first(node, script)
        verb, name = ("FCALL", script.function) if is_function else ("EVALSHA", script.sha)
        command: list[Arg] = [verb, name, len(keys), *keys, *args]

        def answered(reply: Any) -> None:
            meter.observe(perf_counter() - sent_s)
            if self.cluster is not None:
                reply = self.cluster.validated(node, keys[0], reply)
            if isinstance(reply, Exception):
                self._refused(script, node, keys, command, reply, on_reply)
            else:
                on_reply(reply)

        node.control.send(command, answered)

    def _refused(
        self, script: Script, node: Node, keys: Sequence[str], command: list[Arg], refusal: Any, on_reply: OnScript
    ) -> None:
        """Handle an error reply: run the script instead of its function, load it, follow the redirect, or fail."""

        def answered(reply: Any) -> None:
            if self.cluster is not None:
                reply = self.cluster.validated(node, keys[0], reply)
            self._refused(script, node, keys, command, reply, on_reply)

        if command[0] == "FCALL":
            command[:2] = "EVALSHA", script.sha
            if self.loaded_scripts.was_not_run(node, str(refusal)):
                node.control.send(command, answered)
                return

        if str(refusal).startswith("NOSCRIPT"):
            node.control.send(["SCRIPT", "LOAD", script.source], on_script_loaded)
            node.control.send(command, partial(self._answered, script, node, keys, command, on_reply))
        else:
            self._answered(script, node, keys, command, on_reply, refusal)

    def _answered(
        self, script: Script, node: Node, keys: Sequence[str], command: list[Arg], on_reply: OnScript, reply: Any
    ) -> None:
        if self.cluster is not None and is_refusal(reply):
            again = partial(self._answered, script, node, keys, command, on_reply)
            Redirected(self.cluster, node, "control", keys[0], command, again, script=script).go_on(str(reply))
        elif isinstance(reply, hiredis.ReplyError):
            on_reply(self._failed(script, keys, str(reply)))
        else:
            on_reply(Unknown(str(reply)) if isinstance(reply, Exception) else reply)

    async def run(self, script: Script, keys: Sequence[str], *args: Arg) -> list[Any]:
        """Run a script and return what follows its code. Raises the KafkaError of a code other than NONE."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.send_script(script, keys, args, partial(_resolve, future))
        try:
            return await future
        finally:
            del future  # it has the error, whose traceback has this frame: a cycle, with the keys of every caller

    def _failed(self, script: Script, keys: Sequence[str], text: str) -> Failure:
        """The failure for an error of Redis itself (out of memory, read-only, loading, no rights, script error).

        Logged at most once a second per script, with the number of failures since: a hot script can fail very often.
        """
        if text.startswith("READONLY"):
            self.reconnect_to_primary()
        self.wrong_types.check(text, keys)
        now_s = monotonic()
        logged_s, since = self._failures.get(script.name, (0.0, 0))
        if now_s - logged_s >= _FAILURES_LOGGED_EVERY_S:
            logger.error("script_failed", script=script.name, reason=text, times=since + 1)
            self._failures[script.name] = (now_s, 0)
        else:
            self._failures[script.name] = (logged_s, since + 1)
        return script_failure_of(text)

    # -- plain commands

    def send(self, args: Sequence[Arg], on_reply: OnReply) -> None:
        """Send one command on the control lane of its key's node; `on_reply` as for `Link.send`."""
        if self.cluster is None:
            self.metadata_node.control.send(args, on_reply)
        else:
            self.cluster.send("control", args, on_reply)

    def send_in_order(self, *commands: tuple[Sequence[Arg], OnReply]) -> None:
        """As `send`, executed in order and sent in one write; one by one where redirects are possible."""
        if self.cluster is None:
            for args, on_reply in commands:
                self.metadata_node.control.send(args, on_reply)
            return
        (args, on_first), rest = commands[0], commands[1:]

        def answered(reply: Any) -> None:
            if rest:  # before the callback, which may raise
                self.send_in_order(*rest)
            on_first(reply)

        self.cluster.send("control", args, answered)

    async def command(self, *args: Arg) -> Any:
        """Run one command on the control lane. Raises StoreUnavailable, also for an error reply."""
        cluster = self.cluster
        call = self.metadata_node.control.call(*args) if cluster is None else cluster.call("control", *args)
        return await self._answer(call, args)

    async def read(self, *args: Arg) -> Any:
        """Run one read with a possibly large reply, on the lane that delays no heartbeat. Raises StoreUnavailable."""
        if self.cluster is None:
            return await self._answer(self.metadata_node.data_in.call(*args), args)
        return await self._answer(self.cluster.call("data_in", *args), args)

    async def read_at_owner(self, *args: Arg) -> Any:
        """As `read`, from the server that owns the key: waits while the key's slot is migrating."""
        if self.cluster is None:
            return await self._answer(self.metadata_node.data_in.call(*args), args)
        return await self._answer(self.cluster.call("data_in", *args, asking=False), args)

    async def _answer(self, call: Awaitable[Any], args: Sequence[Arg]) -> Any:
        try:
            return await call
        except hiredis.ReplyError as error:
            self.wrong_types.check(str(error), [str(args[1])] if len(args) > 1 else [])
            raise error_of_command(str(error)) from error


def _resolve(future: asyncio.Future[list[Any]], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, Failure):
        future.set_exception(reply.error)
    elif reply[0] != 0:
        future.set_exception(from_code(reply[0]))
    else:
        future.set_result(reply[1:])
