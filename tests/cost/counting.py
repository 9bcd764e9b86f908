"""Counts of what one broker does between two moments: Python, sockets, Redis.

Python is counted by tracing whatever runs on behalf of the broker's process, without the simulated event loop and
transports below it. A write to a transport and a chunk read from one are a system call each.
"""

from __future__ import annotations

import _weakrefset
import asyncio.base_events
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import hiredis

from tests.simulation.loop import current_process
from tests.simulation.network import GRAIN_S, Fabric
from tests.simulation.redis_link import RedisLink, ServerConnection, SimRedis
from tidegate.store import scripts

COLUMNS: Final = (
    "calls",
    "bytecodes",
    "client_io",
    "redis_io",
    "commands",
    "server_commands",
    "bytes_to_redis",
    "bytes_from_redis",
)
PYTHON_COLUMNS: Final = frozenset({"calls", "bytecodes"})
"""Columns that differ between minor versions of Python."""

_NOT_COUNTED: Final = (str(Path(__file__).parents[1]), asyncio.base_events.__file__, _weakrefset.__file__)
"""The harness, the loop, and asyncio's list of all tasks, which is tidied up whenever an earlier task is freed."""
_COMMAND_CALLS: Final = re.compile(r"cmdstat_([^:]+):calls=(\d+)")
_HARNESS_COMMANDS: Final = frozenset({"echo", "info", "config|resetstat"})


class Counters:
    """The running totals; `calls` and `bytecodes` grow only while tracing."""

    def __init__(self) -> None:
        self.calls = self.bytecodes = 0
        self.client_io = self.redis_io = 0
        self.commands = 0
        self.bytes_to_redis = self.bytes_from_redis = 0
        self.files: set[str] = set()
        self.scripts: set[str] = set()
        """Python files that ran, and the SHA-1, or the function, of scripts that were sent."""

    def start_tracing(self) -> None:
        """Count frames and bytecodes from here on."""
        sys.settrace(self._enter)

    def stop_tracing(self) -> None:
        """Count no more frames and bytecodes."""
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if current_process() is None or frame.f_code.co_filename.startswith(_NOT_COUNTED):
            return None
        self.calls += 1
        self.files.add(frame.f_code.co_filename)
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "opcode":
            self.bytecodes += 1
        return self._step


def script_files(sha: str) -> set[str]:
    """The files of a script, by its SHA-1 or its function's name, and of what it includes."""
    functions = scripts.library().functions
    names = [next(one.name for one in scripts.registered() if sha in (one.sha, functions.get(one.name)))]
    found = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += re.findall(r"^-- @include (\S+)$", scripts.read(name), re.MULTILINE)
    return {f"redis_scripts/{name}.lua" for name in found}


class SteadyFabric(Fabric):
    """A network that takes equally long for all, so that what is sent together arrives together."""

    def __init__(self, rng: Any) -> None:
        super().__init__(rng)
        self.split_share = 0.0

    def latency(self, base_s: float) -> float:
        return GRAIN_S


class CountedLink(RedisLink):
    """A link that counts chunks and bytes of replies."""

    def _deliver(self, data: bytes) -> None:
        counters: Counters = self._redis.counters  # type: ignore[attr-defined]
        counters.redis_io += 1
        counters.bytes_from_redis += len(data)
        super()._deliver(data)


class CountedRedis(SimRedis):
    """A server whose links count what brokers send."""

    link_type = CountedLink

    def __init__(self, loop: Any, server: CountedServer, rng: Any, counters: Counters) -> None:
        super().__init__(loop, server, rng)
        self.counters = counters
        self.lost_messages_share = 0.0

    def send(self, at_s: float, link: RedisLink, data: bytes) -> None:
        self.counters.redis_io += 1
        self.counters.bytes_to_redis += len(data)
        reader = hiredis.Reader()
        reader.feed(data)
        while (command := reader.gets()) is not False:
            self.counters.commands += 1
            if command[0] in (b"EVALSHA", b"FCALL"):
                self.counters.scripts.add(command[1].decode())
        super().send(at_s, link, data)


class CountedServer(ServerConnection):
    """A server that says how many commands it ran, those of scripts included."""

    clock_steps = 0

    def run(self, now_ms: int, batches: list[bytes]) -> Any:
        self.clock_steps += now_ms != self._now_ms
        return super().run(now_ms, batches)

    def reset(self, now_ms: int) -> None:
        """Count from zero."""
        self.call(now_ms, "CONFIG", "RESETSTAT")
        self.clock_steps = 0

    def commands_run(self, now_ms: int) -> int:
        """Commands since `reset`, without those of the harness: end marks and steps of the clock."""
        answer = self.call(now_ms, "INFO", "commandstats")
        text = answer.decode() if isinstance(answer, bytes) else str(answer)
        ran = {name: int(calls) for name, calls in _COMMAND_CALLS.findall(text)}
        return sum(calls for name, calls in ran.items() if name not in _HARNESS_COMMANDS) - self.clock_steps
