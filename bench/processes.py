"""What a window of time cost: CPU of brokers and Redis by pid, of the neighbours, and the machine's load."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process and of its ended children; 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS


def tree_cpu_seconds(pid: int) -> float:
    """CPU of a process and of all that it started, ended or not, as far as each waited for its own."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text()
            children[int(text[text.rindex(")") + 2 :].split()[1])].append(int(stat.parent.name))
    total, left = 0.0, [pid]
    while left:
        one = left.pop()
        total += cpu_seconds(one)
        left += children[one]
    return total


def is_redis(pid: int) -> bool:
    """Whether a process is a Redis or Valkey server."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False
    return "redis" in name or "valkey" in name


def _busy_seconds() -> float:
    """CPU that the whole machine has used, without idle, waiting and stolen time."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / _TICKS


def wait_quiet(longest_s: float, cores: float = 0.4, window_s: float = 1.0) -> bool:
    """Wait until the whole machine has used fewer than `cores` for a second; False when it never did."""
    ends = time.monotonic() + longest_s
    while time.monotonic() < ends:
        before = _busy_seconds()
        time.sleep(window_s)
        if (_busy_seconds() - before) / window_s < cores:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    busy: float
    own: float
    brokers: float
    redis: float
    load: float


class Meter:
    """Measures one window. `pids` are the processes of the endpoint; Redis is recognised by its name."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._redis = [pid for pid in pids if is_redis(pid)]
        self._brokers = [pid for pid in pids if pid not in self._redis]
        self._first = self._read()
        self._last = self._first

    def _read(self) -> _Reading:
        return _Reading(
            time.perf_counter(),
            _busy_seconds(),
            time.process_time(),
            sum(map(cpu_seconds, self._brokers)),
            sum(map(cpu_seconds, self._redis)),
            os.getloadavg()[0],
        )

    def start(self) -> None:
        """The window begins."""
        self._first = self._read()

    def stop(self) -> float:
        """The window ends; its length in seconds."""
        self._last = self._read()
        return self._last.at - self._first.at

    def figures(self, ops: int) -> dict[str, Any]:
        """What the window cost, by operation where that can be said."""
        first, last = self._first, self._last
        seconds = last.at - first.at
        brokers, redis = last.brokers - first.brokers, last.redis - first.redis
        own = last.own - first.own
        found: dict[str, Any] = {"seconds": round(seconds, 3), "ops": ops, "ops_per_s": round(ops / seconds, 1)}
        if self._brokers or self._redis:
            found["cpu_us_per_op"] = round((brokers + redis) / ops * 1e6, 3)
            found["broker_cpu_us_per_op"] = round(brokers / ops * 1e6, 3)
            if self._redis:
                found["redis_cpu_us_per_op"] = round(redis / ops * 1e6, 3)
            others = (last.busy - first.busy - brokers - redis - own) / seconds
            found["other_cores"] = round(max(others, 0.0), 2)
        found["client_cpu_us_per_op"] = round(own / ops * 1e6, 3)
        found["load"] = [round(first.load, 2), round(last.load, 2)]
        return found


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50 and p99 in ms, and the longest."""
    ordered = sorted(seconds)
    if not ordered:
        return {}

    def at(share: float) -> float:
        return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3, 4)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": round(ordered[-1] * 1e3, 4)}
