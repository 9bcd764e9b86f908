"""Several servers as one: a cluster of three nodes; a primary with a replica and a sentinel."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from bench.cluster import server_binary
from tests.support.valkey import ValkeyServer, free_port

SLOTS = 16_384
NODES = 3


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Ask again and again; raises TimeoutError. A server that is not up yet does not hold."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except redis.RedisError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the servers did not get ready")


def ask_until(condition: Callable[[], bool], ask: Callable[[], object], again_s: float = 10.0) -> None:
    """Ask servers for a change until it is there: they give one up that takes too long, as on a machine that stalls."""
    asked_s = float("-inf")

    def changed() -> bool:
        nonlocal asked_s
        if condition():
            return True
        if time.monotonic() - asked_s > again_s:
            asked_s = time.monotonic()
            ask()
        return False

    wait_until(changed)


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster of three nodes that have all slots between them."""
    with ExitStack() as stack:
        servers = []
        for _ in range(NODES):
            servers.append(ValkeyServer(extra=("--cluster-enabled", "yes")))
            stack.callback(servers[-1].stop)
        clients = [stack.enter_context(redis.Redis(port=server.port)) for server in servers]
        for at, client in enumerate(clients):
            first, last = SLOTS * at // NODES, SLOTS * (at + 1) // NODES - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            for server in servers[:at]:
                bus = server.extra[server.extra.index("--cluster-port") + 1]
                client.execute_command("CLUSTER MEET", "127.0.0.1", server.port, bus)
        wait_until(
            lambda: all(
                client.cluster("INFO")["cluster_state"] == "ok" and len(client.cluster("NODES")) == NODES
                for client in clients
            )
        )
        yield f"redis+cluster://127.0.0.1:{servers[0].port}"


@contextmanager
def sentinel(directory: Path) -> Iterator[tuple[str, ValkeyServer]]:
    """The address by a sentinel, and the primary that it watches; one replica follows."""
    with ExitStack() as stack:
        primary = ValkeyServer()
        stack.callback(primary.stop)
        replica = ValkeyServer(extra=("--replicaof", f"127.0.0.1 {primary.port}"))
        stack.callback(replica.stop)
        follower = stack.enter_context(redis.Redis(port=replica.port))
        wait_until(lambda: follower.info("replication")["master_link_status"] == "up")
        port = free_port()
        config = directory / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 3000\nsentinel failover-timeout main 5000\n"
        )
        process = subprocess.Popen(
            [server_binary(), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        asked = stack.enter_context(redis.Redis(port=port))
        wait_until(lambda: len(asked.execute_command("SENTINEL REPLICAS", "main")) == 1)
        yield f"redis+sentinel://127.0.0.1:{port}/main/0", primary
