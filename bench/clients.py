"""Real client libraries as group members: small programs under tests/clients, built where needed.

A program takes BOOTSTRAP TOPIC GROUP SESSION_MS (0: the client's default), then commands on stdin: `join N MODE
[INSTANCE]` with MODE auto, sync or async commits, and `close N`; the end of stdin ends it. It prints one JSON line
an event: joining, assigned, revoked, records, closed, and what failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.cluster import REPOSITORY
from bench.jars import PeerUnavailable, cache_directory, classpath, share_clients

SOURCES: Final = REPOSITORY / "tests" / "clients"
_BUILD_TIMEOUT_S: Final = 900

Command = list[str]


@dataclass(frozen=True, slots=True)
class Client:
    """One client library: how its program is made, and what is known of it."""

    name: str
    prepare: Callable[[], Command]
    """What starts its program. Raises PeerUnavailable."""
    static: bool = True
    """Whether it knows static members (KIP-345)."""
    held: bool = False
    """Whether brokers try to hold its heartbeats."""


def _built() -> Path:
    target = cache_directory() / "clients"
    target.mkdir(parents=True, exist_ok=True)
    return target


def _run(command: Command, where: Path, **environment: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{command[0]} did not finish in time") from None
    if done.returncode != 0:
        raise PeerUnavailable(f"{' '.join(command[:2])}: {(done.stderr or done.stdout).strip()[-300:]}")


def _program(name: str, *elsewhere: str) -> str:
    found = shutil.which(name) or next((path for path in elsewhere if Path(path).exists()), None)
    if found is None:
        raise PeerUnavailable(f"{name} is not on the PATH")
    return found


def python_program(file: str) -> Callable[[], Command]:
    """What starts a program of tests/clients/python."""
    return lambda: [sys.executable, str(SOURCES / "python" / file)]


def java_program(name: str) -> Callable[[], Command]:
    """What compiles a program of tests/clients/java; it raises PeerUnavailable without Java or Kafka's jars."""
    return lambda: _java(name, classpath())


def newest_java_program(name: str) -> Callable[[], Command]:
    """The same with the newest clients."""
    return lambda: _java(name, share_clients())


def _java(name: str, jars: str) -> Command:
    source = (SOURCES / "java" / f"{name}.java").read_bytes()
    target = _built() / f"{name}-{sha256(source + jars.encode()).hexdigest()[:16]}"
    if not target.exists():  # whole at once: another process may just start it
        with TemporaryDirectory(dir=_built()) as scratch:
            compiled = Path(scratch) / name
            _run([_program("javac"), "-cp", jars, "-d", str(compiled), f"{name}.java"], SOURCES / "java")
            with contextlib.suppress(OSError):  # another one was faster
                compiled.rename(target)
    quiet = [
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xmx256m",
    ]
    return [_program("java"), *quiet, "-cp", f"{target}:{jars}", name]


def go_program(program: str) -> Callable[[], Command]:
    """What builds a program of tests/clients/go; it raises PeerUnavailable without Go or its modules."""

    def prepare() -> Command:
        target = _built() / program
        go = _program("go", "/usr/local/go/bin/go")
        with (_built() / "lock").open("w") as lock:  # several at once would each compile every module
            fcntl.flock(lock, fcntl.LOCK_EX)
            _run([go, "build", "-o", str(target), f"./{program}"], SOURCES / "go", GOFLAGS="-buildvcs=false")
        return [str(target)]

    return prepare


def node_program(file: str) -> Callable[[], Command]:
    """What starts a program of tests/clients/node; it raises PeerUnavailable without node or KafkaJS."""
    return lambda: _node(file)


def _node(file: str) -> Command:
    target = _built() / "node"
    target.mkdir(exist_ok=True)
    for name in ("package.json", file):
        shutil.copy(SOURCES / "node" / name, target / name)
    node, npm = _program("node"), _program("npm")
    if not (target / "node_modules" / "kafkajs").exists():
        _run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund"], target)
    return [node, str(target / file)]


CLIENTS: Final = {
    client.name: client
    for client in (
        Client("aiokafka", python_program("aiokafka_member.py"), held=True),
        Client("kafka-python", python_program("kafka_python_member.py"), held=True),
        Client("librdkafka", python_program("confluent_member.py"), held=True),
        Client("java", java_program("Member"), held=True),
        Client("franz-go", go_program("franz")),
        Client("sarama", go_program("sarama")),
        Client("kafkajs", node_program("member.js"), static=False),
    )
}


class Program:
    """One process with any number of members. `on_event(program, event, seconds)` gets every line."""

    def __init__(self, on_event: Callable[[Program, dict[str, Any], float], None]) -> None:
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, command: Command, bootstrap: str, topic: str, group: str, session_ms: int = 0) -> Program:
        """Start it; members come by `join`."""
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *(bootstrap, topic, group, str(session_ms)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        loop = asyncio.get_running_loop()
        async for line in self._process.stdout:
            if line.startswith(b"{"):
                self._on_event(self, json.loads(line), loop.time())

    def send(self, command: str) -> None:
        """One command."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    async def kill(self) -> None:
        """SIGKILL, as a crash is."""
        if self._process is None or self._reading is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading
