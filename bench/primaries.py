"""A Redis Cluster on loopback without replicas, each primary with an equal share of the slots."""

from __future__ import annotations

import time
from typing import Final

import redis

from bench.cluster import Cluster, Servers

_SLOTS: Final = 16_384
_TIMEOUT_S: Final = 30.0


class Primaries(Servers):
    """That many servers as one cluster. A context manager."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._servers = [Cluster(0, server_options=["--cluster-enabled", "yes"]) for _ in range(count)]

    @property
    def url(self) -> str:
        """All of them, as `redis_url` takes them."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{server.redis_port}' for server in self._servers)}"

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [server.redis_pid for server in self._servers]

    def _start(self) -> None:
        for server in self._servers:
            self._closing.enter_context(server)
        self._unite()

    def _unite(self) -> None:
        """Share the slots, introduce the servers, wait until all agree. Raises RuntimeError."""
        count = len(self._servers)
        clients = [self._closing.enter_context(redis.Redis(port=server.redis_port)) for server in self._servers]
        for number, client in enumerate(clients):
            first, last = _SLOTS * number // count, _SLOTS * (number + 1) // count - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self._servers[0].redis_port)
        ends_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < ends_s:
            infos = [client.execute_command("CLUSTER", "INFO") for client in clients]
            if all(_is_united(bytes(info), count) for info in infos):
                return
            time.sleep(0.1)
        raise RuntimeError("the servers do not form a cluster")


def _is_united(info: bytes, count: int) -> bool:
    lines = info.split(b"\r\n")
    return b"cluster_state:ok" in lines and b"cluster_size:%d" % count in lines
