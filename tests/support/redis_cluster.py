"""A real Redis Cluster on loopback: primaries with a replica each, slots that move, primaries that die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from bench.cluster import Servers
from tests.support.many_servers import ask_until, wait_until
from tests.support.valkey import ValkeyServer
from tidegate.store.slots import SLOTS, key_slot

_AT_ONCE = 100
_MEET_S = 5.0


class Sharded(Servers):
    """Servers as one cluster; the first `primaries` begin as such, and share the slots. A context manager."""

    def __init__(
        self, primaries: int = 3, replicas: int = 1, extra: Sequence[str] = (), timeout_ms: int | None = None
    ) -> None:
        super().__init__()
        if timeout_ms is None:  # where nobody can take over, a node that has no processor for a while is not to be lost
            timeout_ms = 1_500 if replicas else 15_000
        self.servers: list[ValkeyServer] = []
        self._count, self._replicas = primaries, replicas
        self._extra = [
            "--cluster-enabled", "yes", "--cluster-node-timeout", str(timeout_ms), "--repl-diskless-sync-delay", "0",
            "--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0",
            "--cluster-allow-replica-migration", "no", *extra,
        ]  # fmt: skip

    @property
    def url(self) -> str:
        """All first primaries, as `redis_url` takes them."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in self.servers[: self._count])}"

    def client(self, server: ValkeyServer) -> redis.Redis:
        """A connection to one server. Close it."""
        return redis.Redis(port=server.port, socket_timeout=60)

    def ask(self, server: ValkeyServer, *command: Any) -> Any:
        """One command to one server, its reply not parsed."""
        with self.client(server) as client:
            # In words: redis-py would parse the reply of what it knows by its whole name.
            return client.execute_command(*command)

    def owner(self, key: str) -> ValkeyServer:
        """The primary that has a key, by what the first server that is up says."""
        return self.owner_of(key_slot(key))

    def owner_of(self, slot: int) -> ValkeyServer:
        """The primary that has a slot."""
        for server in self.servers:
            if server.process is not None:
                for first, last, primary, *_ in self.ask(server, "CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return self.at(primary[1])
        raise LookupError(slot)

    def at(self, port: int) -> ValkeyServer:
        """The server on a port."""
        return next(server for server in self.servers if server.port == port)

    def primary_of(self, replica: ValkeyServer) -> ValkeyServer:
        """Whom a replica follows."""
        with self.client(replica) as client:
            return self.at(client.info("replication")["master_port"])

    def primaries(self) -> list[ValkeyServer]:
        """Those that call themselves so and are up."""
        return [one for one in self.servers if one.process is not None and self._role(one) == b"master"]

    def fail_over(self, dead: ValkeyServer) -> None:
        """Wait until a replica of a server that was killed has its slots, and all others know."""
        up = [server for server in self.servers if server is not dead and server.process is not None]
        wait_until(lambda: all(dead.port not in self._ports(server) and self._well(server) for server in up))

    def in_sync(self) -> None:
        """Wait until every replica follows."""
        wait_until(lambda: all(self._follows(one) for one in self.servers if one.process is not None), timeout_s=120)

    def add(self) -> ValkeyServer:
        """A primary more, without slots, that all others know."""
        server = self._server()
        self._meet([server], self.servers[0])
        wait_until(lambda: all(self._well(one) for one in self.servers))
        return server

    def begin_move(self, slot: int, target: ValkeyServer) -> ValkeyServer:
        """Mark a slot as on its way to another primary; returns where it is. Its keys stay."""
        source = self.owner_of(slot)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))
        return source

    def move_keys(self, source: ValkeyServer, target: ValkeyServer, keys: Sequence[bytes | str]) -> None:
        """Take keys over, each at one instant."""
        self.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 30_000, "KEYS", *keys)

    def end_move(self, slot: int, source: ValkeyServer, target: ValkeyServer) -> None:
        """All keys are there: announce the new owner of the slot to every primary."""
        for server in (target, source, *(one for one in self.primaries() if one not in (target, source))):
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", self.node_id(target))

    def move(self, slot: int, target: ValkeyServer) -> None:
        """Move a slot and its keys, as redis-cli's reshard does."""
        source = self.begin_move(slot, target)
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, _AT_ONCE):
            self.move_keys(source, target, keys)
        self.end_move(slot, source, target)

    def move_atomically(self, slot: int, target: ValkeyServer) -> None:
        """Move a slot as Valkey 9 does: keys are copied as to a replica, and the slot changes hands at once."""
        source = self.owner_of(slot)
        self.ask(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(target))
        wait_until(lambda: all(self._owner_known_to(one, slot) == target.port for one in self.primaries()))

    def hand_over(self, primary: ValkeyServer) -> None:
        """A replica takes the primary's place by request, and all others know."""
        replica = next(
            one for one in self.servers if self._role(one) == b"slave" and self.primary_of(one) is primary
        )  # fmt: skip

        def replaced() -> bool:
            return all(primary.port not in self._ports(server) and self._well(server) for server in self.servers)

        ask_until(replaced, lambda: self.ask(replica, "CLUSTER", "FAILOVER"))

    def flush(self) -> None:
        """Forget every key."""
        for server in self.primaries():
            self.ask(server, "FLUSHALL")

    def node_id(self, server: ValkeyServer) -> str:
        """What the nodes call a server."""
        return str(self.ask(server, "CLUSTER", "MYID").decode())

    # -- life

    def _server(self) -> ValkeyServer:
        server = ValkeyServer(self._extra)
        self._closing.callback(server.stop)
        self.servers.append(server)
        return server

    def _start(self) -> None:
        primaries = [self._server() for _ in range(self._count)]
        for at, server in enumerate(primaries):
            first, last = SLOTS * at // self._count, SLOTS * (at + 1) // self._count - 1
            self.ask(server, "CLUSTER", "ADDSLOTSRANGE", first, last)
            self.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        replicas = [self._server() for _ in range(self._count * self._replicas)]
        self._meet([*replicas, *primaries[1:]], primaries[0])
        for at, server in enumerate(self.servers[self._count :]):
            self.ask(server, "CLUSTER", "REPLICATE", self.node_id(primaries[at % self._count]))
        wait_until(lambda: all(self._well(one) for one in self.servers))
        self.in_sync()
        followers = self._count * self._replicas
        wait_until(lambda: all(self._replicas_known(one) == followers for one in self.servers))

    def _meet(self, newcomers: Sequence[ValkeyServer], other: ValkeyServer) -> None:
        """Wait until all know all. A server tries to meet another for its node timeout, and then forgets it."""
        bus = other.extra[other.extra.index("--cluster-port") + 1]

        def meet() -> None:
            for server in newcomers:
                self.ask(server, "CLUSTER", "MEET", "127.0.0.1", other.port, bus)

        ask_until(lambda: all(self._knows(one) for one in self.servers), meet, _MEET_S)

    def _knows(self, server: ValkeyServer) -> bool:
        lines = self.ask(server, "CLUSTER", "NODES").splitlines()
        return len(lines) == len(self.servers) and all(line.split()[7] == b"connected" for line in lines)

    def _replicas_known(self, server: ValkeyServer) -> int:
        return sum(len(run) - 3 for run in self.ask(server, "CLUSTER", "SLOTS"))

    def _well(self, server: ValkeyServer) -> bool:
        return b"cluster_state:ok" in self.ask(server, "CLUSTER", "INFO")

    def _owner_known_to(self, server: ValkeyServer, slot: int) -> int:
        runs = self.ask(server, "CLUSTER", "SLOTS")
        return next((int(run[2][1]) for run in runs if run[0] <= slot <= run[1]), 0)

    def _ports(self, server: ValkeyServer) -> set[int]:
        return {run[2][1] for run in self.ask(server, "CLUSTER", "SLOTS")}

    def _role(self, server: ValkeyServer) -> bytes:
        with self.client(server) as client:
            role: bytes = client.role()[0]
            return role

    def _follows(self, server: ValkeyServer) -> bool:
        with self.client(server) as client:
            facts = client.info("replication")
        return facts["role"] == "master" or facts["master_link_status"] == "up"
