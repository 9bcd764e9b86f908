"""Registry of running `tidegate dev` clusters, so that commands without addresses find them.

One small file each in ${XDG_RUNTIME_DIR:-/tmp}/tidegate-<uid>/, a directory private to its user. The newest `dev` is
used, after its end the next older one; files of dead processes are ignored. `named_cluster` decides whether a command
uses it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import NamedTuple


class DevCluster(NamedTuple):
    """One running `tidegate dev`."""

    pid: int
    bootstrap: str
    redis_url: str
    admin: tuple[str, ...]

    def listens_on(self, port: int) -> bool:
        """Whether one of its brokers serves clients or the admin HTTP at that address."""
        addresses = (*self.bootstrap.split(","), *self.admin)
        return any(address.endswith(f":{port}") for address in addresses)


def directory() -> Path:
    """The user's registry directory, created if absent. Raises CannotStart when another user owns or may write it."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    found = Path(base if base and Path(base).is_dir() else "/tmp") / f"tidegate-{os.getuid()}"  # noqa: S108 - checked below
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = found.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        from tidegate.startup import CannotStart

        raise CannotStart(f"{found} belongs to someone else or is writable by others")
    return found


def note(cluster: DevCluster) -> None:
    """Register a running cluster atomically."""
    path = _path(cluster.pid)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(cluster._asdict(), indent=1) + "\n", "utf-8")
    fresh.replace(path)


def every() -> list[DevCluster]:
    """All running clusters, newest first."""
    alive = [one for path in directory().glob("dev-*.json") if (one := _read(path)) is not None]
    return [cluster for _, cluster in sorted(alive, key=lambda one: one[0], reverse=True)]


def find() -> DevCluster | None:
    """The newest running cluster, or None."""
    return next(iter(every()), None)


def forget(pid: int) -> None:
    """Remove the file of process `pid`."""
    _path(pid).unlink(missing_ok=True)


def _path(pid: int) -> Path:
    return directory() / f"dev-{pid}.json"


def _read(path: Path) -> tuple[int, DevCluster] | None:
    """A file's content and modification time, ns; None when its process has exited."""
    try:
        written_ns = path.stat().st_mtime_ns
        held = json.loads(path.read_text("utf-8"))
        cluster = DevCluster(held["pid"], held["bootstrap"], held["redis_url"], tuple(held["admin"]))
        os.kill(cluster.pid, 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return written_ns, cluster
