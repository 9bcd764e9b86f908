"""A real server for tests, the one that `bench.cluster` would start."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence

from bench.cluster import free_port, server_binary
from tests.support import acl


class ValkeyServer:
    """One server process on loopback, without persistence unless `extra` says so. Stopped by its own pid."""

    def __init__(self, extra: Sequence[str] = (), port: int | None = None, binary: str | None = None) -> None:
        self.port = port or free_port()
        self.directory = tempfile.mkdtemp(prefix="tidegate-valkey-")
        self.binary = binary or server_binary()
        self.extra = list(extra)
        if "--cluster-enabled" in self.extra and "--cluster-port" not in self.extra:
            # By default the bus takes this port + 10000, which may be the port of another test's server.
            self.extra += ["--cluster-port", str(free_port())]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Its address as `redis_url` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start (again) on the same port and directory."""
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory]
        command += [
            "--save",
            "",
            "--maxmemory-policy",
            "noeviction",
            "--daemonize",
            "no",
            *self.extra,
            *acl.server_options(self.binary),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=0.2) as sock:
                    sock.sendall(b"PING\r\n")
                    if sock.recv(64).startswith(b"+PONG"):
                        return
            except OSError:
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"the test server on port {self.port} did not start")

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it and remove its files."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
