"""A primary, its replicas and the sentinels that watch them, all real; fail-overs on request or by harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.cluster import Servers
from tests.support.many_servers import ask_until, wait_until
from tests.support.valkey import ValkeyServer, free_port, server_binary

SERVICE = "main"


class Watched(Servers):
    """Servers and sentinels, most of which need to agree. A context manager."""

    def __init__(
        self,
        replicas: int = 1,
        extra: Sequence[str] = (),
        sentinel_password: str = "",
        down_after_ms: int = 1_000,
        sentinels: int = 3,
    ) -> None:
        super().__init__()
        self.servers: list[ValkeyServer] = []
        self.sentinel_ports = [free_port() for _ in range(sentinels)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._replicas = replicas
        self._extra = ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "10mb", *extra]
        self._password = sentinel_password
        self._down_after_ms = down_after_ms
        self._directory = Path(tempfile.mkdtemp(prefix="tidegate-sentinels-"))
        self._closing.callback(shutil.rmtree, self._directory, ignore_errors=True)

    @property
    def url(self) -> str:
        """All sentinels, as `redis_url` takes them."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinel_ports)}/{SERVICE}/0"

    def primary_port(self) -> int:
        """Where the last sentinel says that the primary is."""
        return int(self._ask("SENTINEL GET-MASTER-ADDR-BY-NAME")[1])

    def primary(self) -> ValkeyServer:
        """The server that the sentinels name."""
        port = self.primary_port()
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> None:
        """Have the sentinels put another server in the primary's place, and wait until they say that they have."""
        before = self.primary_port()
        ask_until(lambda: self.primary_port() != before, self._ask_to_fail_over)
        self.wait_for_another(before)

    @contextlib.contextmanager
    def paused_sentinel(self, index: int) -> Iterator[None]:
        """One of them hangs, and misses what the others agree on."""
        os.kill(self._processes[index].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._processes[index].pid, signal.SIGCONT)

    def wait_for_another(self, before: int) -> None:
        """Wait until the sentinels name another primary, and it says so too."""
        wait_until(lambda: self.primary_port() != before)
        with redis.Redis(port=self.primary_port()) as client:
            wait_until(lambda: client.role()[0] == b"master")

    def wait_in_sync(self) -> None:
        """Wait until every other server follows the primary: one that does not would lose all as its successor."""
        wait_until(self._in_sync, timeout_s=120)

    def _in_sync(self) -> bool:
        primary = self.primary_port()
        for server in self.servers:
            if server.port != primary:
                with redis.Redis(port=server.port) as client:
                    if not _follows(client, primary):
                        return False
        return True

    def _ask_to_fail_over(self) -> None:
        wait_until(self._replicas_known)
        self._ask("SENTINEL FAILOVER")

    def _replicas_known(self) -> bool:
        """Whether every sentinel that answers knows the replicas as such; one that hangs does nothing for 30 s after.

        They look every 10 s. One that last saw a primary there, from the fail-over before, takes the server that is
        just promoted for that one, and makes it a replica again: the fail-over that was asked for fails.
        """
        for port in self.sentinel_ports:
            client = redis.Redis(
                port=port, password=self._password or None, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)
            )
            with client, contextlib.suppress(redis.TimeoutError):
                if any(replica["role-reported"] != "slave" for replica in client.sentinel_slaves(SERVICE)):
                    return False
        return True

    def _ask(self, command: str) -> list[bytes]:
        with redis.Redis(port=self.sentinel_ports[-1], password=self._password or None) as client:
            # Not execute_command with the whole name: redis-py would parse the reply of some.
            reply: list[bytes] = client.execute_command(*command.split(), SERVICE)
            return reply

    def _start(self) -> None:
        primary = self._server([])
        replicas = [self._server(["--replicaof", f"127.0.0.1 {primary.port}"]) for _ in range(self._replicas)]
        for replica in replicas:
            with redis.Redis(port=replica.port) as client:
                wait_until(lambda asked=client: _follows(asked, primary.port))
        for port in self.sentinel_ports:
            self._processes.append(self._sentinel(port, primary.port))
        for port in self.sentinel_ports:
            with redis.Redis(port=port, password=self._password or None) as client:
                wait_until(lambda asked=client: self._complete(asked))

    def _complete(self, asked: redis.Redis) -> bool:
        state = asked.sentinel_masters()[SERVICE]
        return bool(
            state["num-slaves"] == self._replicas and state["num-other-sentinels"] == len(self.sentinel_ports) - 1
        )

    def _server(self, more: Sequence[str]) -> ValkeyServer:
        server = ValkeyServer([*self._extra, *more])
        self._closing.callback(server.stop)
        self.servers.append(server)
        return server

    def _sentinel(self, port: int, primary_port: int) -> subprocess.Popen[bytes]:
        config = self._directory / f"sentinel-{port}.conf"
        lines = [
            f"port {port}", "bind 127.0.0.1", f"dir {self._directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {len(self.sentinel_ports) // 2 + 1}",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 5000",
        ]  # fmt: skip
        if self._password:
            lines += [f"requirepass {self._password}", f"sentinel sentinel-pass {self._password}"]
        config.write_text("\n".join(lines) + "\n")
        process = subprocess.Popen(
            [server_binary(), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._closing.callback(process.wait)
        self._closing.callback(process.kill)
        return process


def _follows(asked: redis.Redis, primary_port: int) -> bool:
    facts = asked.info("replication")
    return facts.get("master_port") == primary_port and facts["master_link_status"] == "up"
