"""A cluster of real processes to which everything can be done: each broker's links to Redis and to clients are proxies.

Redis is one server that forgets nothing (append-only file, written at each command); or a primary with two replicas
under sentinels; or a Redis Cluster of three primaries with a replica each. Replicas keep what is acknowledged
(`durability=replicated:n` with n = all of them); there brokers reach Redis without a proxy, for sentinels or nodes name
it. Clocks of single processes are stepped: a broker's by `bench.broker_with_constants`, the server's by libfaketime,
where that is installed.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import redis

from bench.cluster import BrokerProcess, Cluster
from tests.support.proxy import Proxy
from tests.support.redis_cluster import Sharded
from tests.support.sentinels import Watched
from tests.support.valkey import ValkeyServer
from tidegate.cli.client.redis_keys import classify

_LIBRARIES: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)
SETTINGS: Final = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "200"}
REPLICATED_SETTINGS: Final = {"TIDEGATE_DURABILITY_TIMEOUT_MS": "20000"}
CONSTANTS: Final = {"tidegate.groups.model.GROUP_EVENTS_MAX": 1_000_000}
STARTED_S: Final = 300.0
"""Brokers are ready long before, on a machine that does little else."""
KEEPING: Final = ("--appendonly", "yes", "--appendfsync", "always")
PREFIX: Final = "tidegate"
_FOLLOWING: Final = ("--appendonly", "yes")


def faketime() -> str | None:
    """libfaketime's path, None where it is not installed."""
    return next((path for path in _LIBRARIES if Path(path).exists()), None)


class SteppedProcess:
    """A process's own clock: the seconds in a file, which the process adds to the time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_s = 0
        self.step(0)

    def step(self, seconds: int) -> None:
        """From now on its clock is so much further."""
        self._offset_s += seconds
        new = self._path.with_suffix(".new")
        new.write_text(f"{self._offset_s:+d}\n")
        new.replace(self._path)

    @property
    def of_broker(self) -> dict[str, str]:
        """The environment of a broker with this clock."""
        return {"BROKER_CLOCK": str(self._path)}

    def of_server(self, library: str) -> dict[str, str]:
        """The environment of a server with this clock. Its monotonic clock stays true."""
        return {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


class Node:
    """One broker with its two links."""

    def __init__(self, process: BrokerProcess, client_link: Proxy, redis_link: Proxy | None) -> None:
        self.process, self.client_link, self._redis_link = process, client_link, redis_link
        self.clock: SteppedProcess | None = None

    @property
    def redis_link(self) -> Proxy:
        """Its way to Redis. Raises RuntimeError where there are replicas."""
        if self._redis_link is None:
            raise RuntimeError("sentinels or nodes name the server: no proxy is between")
        return self._redis_link

    @property
    def links(self) -> list[Proxy]:
        return [link for link in (self.client_link, self._redis_link) if link is not None]

    def step_clock(self, seconds: int) -> None:
        """Step this broker's own clock."""
        if self.clock is not None:
            self.clock.step(seconds)


class FaultyCluster:
    """Three brokers and Redis; an async context manager."""

    def __init__(
        self,
        replicated: bool = False,
        stepped_clocks: bool = False,
        seed: int = 0,
        brokers: int = 3,
        sharded: bool = False,
    ) -> None:
        self.is_replicated, self.is_sharded = replicated or sharded, sharded
        self.has_stepped_clocks = stepped_clocks
        self._library = faketime() if stepped_clocks else None
        self._seed, self._count = seed, brokers
        self.nodes: list[Node] = []
        self._watched: Watched | None = None
        self._sharded: Sharded | None = None
        self._redis_clock: SteppedProcess | None = None
        self._clocks = Path(tempfile.mkdtemp(prefix="tidegate-clocks-"))

    @property
    def has_stepped_redis(self) -> bool:
        """Whether the one server's clock can be stepped."""
        return self._library is not None and not self.is_replicated

    async def __aenter__(self) -> FaultyCluster:
        settings = dict(SETTINGS)
        redis_url = None
        if self.is_sharded:
            settings |= REPLICATED_SETTINGS | {"TIDEGATE_DURABILITY": "replicated:1"}
            self._sharded = Sharded(extra=_FOLLOWING)
            await asyncio.to_thread(self._sharded.__enter__)
            redis_url = self._sharded.url
        elif self.is_replicated:
            settings |= REPLICATED_SETTINGS | {"TIDEGATE_DURABILITY": "replicated:2"}
            self._watched = Watched(replicas=2, extra=_FOLLOWING, down_after_ms=3_000)
            await asyncio.to_thread(self._watched.__enter__)
            redis_url = self._watched.url
        self.cluster = Cluster(brokers=0, settings=settings, server_options=KEEPING, redis_url=redis_url)
        try:
            if not self.is_replicated:
                await asyncio.to_thread(self.start_server)
            for number in range(self._count):
                await self._add(number)
            for node in self.nodes:
                await asyncio.to_thread(node.process.wait_ready, STARTED_S)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _add(self, number: int) -> None:
        redis_link = None if self.is_replicated else Proxy(self.cluster.redis_port, self._seed + number)
        client_link = Proxy(0, self._seed + 100 + number)
        await client_link.start()
        if redis_link is not None:
            await redis_link.start()
        settings = {
            **self.cluster.settings,
            "TIDEGATE_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{client_link.port}",
        }
        clock = None
        if self.has_stepped_clocks:
            clock = SteppedProcess(self._clocks / f"broker-{number}")
            settings |= clock.of_broker
        url = self.cluster.redis_url if redis_link is None else redis_link.url
        process = BrokerProcess(url, self.cluster.directory, f"broker-{number + 1}", settings, CONSTANTS)
        client_link.target = process.port
        self.cluster.brokers.append(process)
        process.start()
        node = Node(process, client_link, redis_link)
        node.clock = clock
        self.nodes.append(node)

    async def close(self) -> None:
        """Stop everything."""
        for proxy in self.proxies:
            proxy.restore()
            await proxy.close()
        await asyncio.to_thread(self.cluster.close)
        if self._watched is not None:
            await asyncio.to_thread(self._watched.__exit__, None, None, None)
        if self._sharded is not None:
            await asyncio.to_thread(self._sharded.__exit__, None, None, None)

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, by way of their proxies."""
        return ",".join(f"127.0.0.1:{node.client_link.port}" for node in self.nodes)

    @property
    def proxies(self) -> list[Proxy]:
        return [link for node in self.nodes for link in node.links]

    # -- Redis

    def start_server(self) -> None:
        """Start (again) the one server, with its stepped clock."""
        if self._library is not None:
            self._redis_clock = self._redis_clock or SteppedProcess(self._clocks / "redis")
            self.cluster.server_environment = self._redis_clock.of_server(self._library)
        self.cluster.start_server()

    def kill_server(self) -> None:
        """SIGKILL the one server."""
        self.cluster.kill_server()

    def primary_ports(self) -> list[int]:
        """Where writes go."""
        if self._sharded is not None:
            return [server.port for server in self._sharded.primaries()]
        return [self.cluster.redis_port if self._watched is None else self._watched.primary_port()]

    def primary_pid(self, rng: random.Random) -> int:
        """A server that takes writes."""
        if self._sharded is None and self._watched is None:
            return self.cluster.redis_pid
        process = self._primary(rng).process
        assert process is not None
        return process.pid

    def _primary(self, rng: random.Random) -> ValkeyServer:
        if self._sharded is not None:
            return rng.choice(self._sharded.primaries())
        assert self._watched is not None
        return self._watched.primary()

    def step_redis_clock(self, seconds: int) -> None:
        """Step the one server's clock."""
        if self._redis_clock is not None:
            self._redis_clock.step(seconds)

    async def set_memory_limit(self, limit: int) -> None:
        """As `maxmemory`, 0 for none; it is gone when the server starts again."""
        await asyncio.to_thread(self._set_memory_limit, limit)

    def _set_memory_limit(self, limit: int) -> None:
        replicated = self._sharded or self._watched
        ports = [self.cluster.redis_port] if replicated is None else [one.port for one in replicated.servers]
        for port in ports:
            with suppress(redis.RedisError), redis.Redis(port=port, socket_timeout=20) as client:
                client.config_set("maxmemory", limit)

    async def replace_primary(self, killed: bool, rng: random.Random) -> None:
        """Another server becomes the primary: it dies, or is asked to hand over; then replicas are in step."""
        await asyncio.to_thread(self._replace_primary, killed, rng)

    def _replace_primary(self, killed: bool, rng: random.Random) -> None:
        if self._sharded is not None:
            _replace_in_cluster(self._sharded, self._primary(rng), killed)
            return
        watched = self._watched
        assert watched is not None
        watched.wait_in_sync()
        if not killed:
            watched.fail_over()
        else:
            primary, before = watched.primary(), watched.primary_port()
            primary.kill()
            watched.wait_for_another(before)
            primary.start()
        watched.wait_in_sync()

    async def move_slot(self, slot: int, atomically: bool, rng: random.Random) -> None:
        """A slot of the Redis Cluster moves to another primary, with its keys; then replicas are in step."""
        await asyncio.to_thread(self._move_slot, slot, atomically, rng)

    def _move_slot(self, slot: int, atomically: bool, rng: random.Random) -> None:
        sharded = self._sharded
        assert sharded is not None
        source = sharded.owner_of(slot)
        target = rng.choice([one for one in sharded.primaries() if one is not source])
        if atomically:
            sharded.move_atomically(slot, target)
        else:
            sharded.move(slot, target)
        sharded.in_sync()

    async def wait_in_sync(self) -> None:
        """Until every replica follows, so that the next fail-over loses nothing that was acknowledged."""
        replicated = self._sharded or self._watched
        if isinstance(replicated, Sharded):
            await asyncio.to_thread(replicated.in_sync)
        elif replicated is not None:
            await asyncio.to_thread(replicated.wait_in_sync)

    def delete_key(self, kind: str, rng: random.Random) -> tuple[bool, str]:
        """Delete a key of this kind, of those in one server that takes writes: whether there was one, and as text."""
        try:
            with redis.Redis(port=rng.choice(self.primary_ports()), socket_timeout=20) as client:
                names = sorted(client.scan_iter(f"{PREFIX}:*", count=1_000))
                found = [name for name in names if (key := classify(name.decode(), PREFIX)) and key.kind.name == kind]
                if not found:
                    return False, f"no key of kind {kind}"
                chosen = rng.choice(found)
                return bool(client.delete(chosen)), f"deleted {chosen.decode()}"
        except redis.RedisError as error:
            return False, f"nothing deleted: {error}"

    def group(self, group: str) -> dict[str, str]:
        """The keys of a group of `default`, as text."""
        found = {}
        for port in self.primary_ports():
            with redis.Redis(port=port, decode_responses=True) as client:
                for key in client.scan_iter(f"tidegate:{{co:*}}:group:default:{group}*", count=1_000):
                    kind = key.rpartition(":")[2]
                    if kind in (group, "members"):
                        found[key] = str(client.hgetall(key))
                    elif kind == "sessions":
                        seconds, _ = client.time()
                        found[key] = f"{client.zrange(key, 0, -1, withscores=True)} at {seconds}"
        return found

    def events(self) -> list[dict[str, str]]:
        """The coordinator's own events of all groups."""
        found = []
        for port in self.primary_ports():
            with redis.Redis(port=port, decode_responses=True) as client:
                for key in client.scan_iter("tidegate:{co:*}:events", count=1_000):
                    found += [fields for _, fields in client.xrange(key)]
        return found


def _replace_in_cluster(sharded: Sharded, primary: ValkeyServer, killed: bool) -> None:
    sharded.in_sync()
    if not killed:
        sharded.hand_over(primary)
    else:
        primary.kill()
        sharded.fail_over(primary)
        primary.start()
    sharded.in_sync()
