"""What a running `tidegate dev` wrote down, so that commands that name no cluster find it.

A small file for each in ${XDG_RUNTIME_DIR:-/tmp}/tidegate-<uid>/, a folder of its owner alone. The newest `dev` wins,
and where it ends the one before; a file whose process is gone counts for nothing. `named_cluster` decides whether a
command goes there.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DevCluster:
    """One running `tidegate dev`."""

    pid: int
    bootstrap: str
    redis_url: str
    admin: tuple[str, ...]

    def listens_on(self, port: int) -> bool:
        """Whether one of its brokers serves clients or its admin HTTP there."""
        addresses = (*self.bootstrap.split(","), *self.admin)
        return any(address.endswith(f":{port}") for address in addresses)


def directory() -> Path:
    """The folder of this user's running processes, made if need be. Raises CannotStart if it is not ours alone."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    found = Path(base if base and Path(base).is_dir() else "/tmp") / f"tidegate-{os.getuid()}"  # noqa: S108 - checked below
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = found.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        from tidegate.errors import CannotStart  # takes longer to import than most commands

        raise CannotStart(f"{found} belongs to someone else or is writable by others")
    return found


def note(cluster: DevCluster) -> None:
    """Write a running cluster down, in one step."""
    path = _path(cluster.pid)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(cluster), indent=1) + "\n", "utf-8")
    fresh.replace(path)


def every() -> list[DevCluster]:
    """All running clusters, the newest first."""
    alive = [one for path in directory().glob("dev-*.json") if (one := _read(path)) is not None]
    return [cluster for _, cluster in sorted(alive, key=lambda one: one[0], reverse=True)]


def find() -> DevCluster | None:
    """The running cluster, the newest of several, or None."""
    return next(iter(every()), None)


def forget(pid: int) -> None:
    """Remove what process `pid` wrote down."""
    _path(pid).unlink(missing_ok=True)


def _path(pid: int) -> Path:
    return directory() / f"dev-{pid}.json"


def _read(path: Path) -> tuple[int, DevCluster] | None:
    """What is written there and when, ns; None where its process is gone."""
    try:
        written_ns = path.stat().st_mtime_ns
        held = json.loads(path.read_text("utf-8"))
        cluster = DevCluster(held["pid"], held["bootstrap"], held["redis_url"], tuple(held["admin"]))
        os.kill(cluster.pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return written_ns, cluster
