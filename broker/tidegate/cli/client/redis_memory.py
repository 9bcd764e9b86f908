"""Memory by owner: MEMORY USAGE of every key of Tidegate, summed by organisation, topic, group and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.cli.client.redis_access import servers
from tidegate.cli.client.redis_keys import classify
from tidegate.cli.progress import Progress

_BATCH: Final = 500
_SAMPLES: Final = 5
"""Elements of a large hash or zset that MEMORY USAGE samples."""

DIMENSIONS: Final = ("org", "topic", "group", "kind")


@dataclass(slots=True)
class Sum:
    """Number of keys and their bytes."""

    keys: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Memory:
    """Sums by dimension and name; `strangers` are keys with the prefix and of unknown kind."""

    total: Sum = field(default_factory=Sum)
    by: dict[str, dict[str, Sum]] = field(default_factory=lambda: {name: defaultdict(Sum) for name in DIMENSIONS})
    strangers: Sum = field(default_factory=Sum)
    used: int = 0
    limit: int = 0

    def add(self, name: str, prefix: str, size: int) -> None:
        """Add one key."""
        key = classify(name, prefix)
        sums = [self.total]
        if key is None:
            sums.append(self.strangers)
        else:
            org = key.org or "(cluster)"
            parts = {
                "org": org,
                "topic": f"{org}/{key.topic}" if key.topic else None,
                "group": f"{org}/{key.group}" if key.group else None,
                "kind": key.kind.name,
            }
            sums += [self.by[what][part] for what, part in parts.items() if part is not None]
        for one in sums:
            one.keys += 1
            one.bytes += size

    def rows(self, what: str) -> list[dict[str, Any]]:
        """The sums of one dimension, largest first."""
        largest = sorted(self.by[what].items(), key=lambda item: (-item[1].bytes, item[0]))
        whole = self.total.bytes or 1
        return [
            {what: name, "keys": one.keys, "bytes": one.bytes, "share": round(one.bytes / whole, 4)}
            for name, one in largest
        ]


def measure(client: Any, prefix: str, progress: Progress) -> Memory:
    """Measure every key, server by server, in small batches that do not block Redis."""
    found = Memory()
    every = servers(client)
    total, observed = sum(one.dbsize() for one in every.values()), 0
    for one in every.values():
        reported: Mapping[str, Any] = one.info("memory")
        found.used += int(reported["used_memory"])
        found.limit += int(reported.get("maxmemory", 0))
        for names, inspected in _scanned(one, prefix):
            for name, size in zip(names, _sizes(one, names), strict=True):
                if size is not None:  # None: deleted meanwhile
                    found.add(name.decode("utf-8", "replace"), prefix, size)
            observed += inspected
            progress(min(observed, total), total)
    return found


def _scanned(client: Any, prefix: str) -> Iterator[tuple[list[bytes], int]]:
    """Batches of Tidegate's keys, each with the number of keys scanned so far."""
    pattern = "".join(f"\\{char}" if char in "*?[]\\^" else char for char in prefix)
    cursor = 0
    while True:
        cursor, names = client.scan(cursor, match=f"{pattern}:*", count=_BATCH)
        yield names, _BATCH
        if cursor == 0:
            return


def _sizes(client: Any, names: Iterable[bytes]) -> list[int | None]:
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.memory_usage(name, samples=_SAMPLES)
    return list(pipe.execute())


def keys_like(client: Any, prefix: str, pattern: str, keys_max: int) -> list[str]:
    """Keys that match a SCAN pattern, in order; `pattern` may omit the prefix."""
    whole = pattern if pattern.startswith(f"{prefix}:") else f"{prefix}:{pattern}"
    found: set[str] = set()
    for one in servers(client).values():
        for name in one.scan_iter(match=whole, count=_BATCH):
            found.add(name.decode("utf-8", "replace"))
            if len(found) >= keys_max:
                return sorted(found)
    return sorted(found)
