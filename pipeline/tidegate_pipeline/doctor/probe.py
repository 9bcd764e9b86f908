"""What one Python process sees: versions, Redis, folders. Runs on the driver and in tasks on executors."""

from __future__ import annotations

import os
import platform
import socket
import time
import uuid
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import redis
from pyarrow import fs

import tidegate
from tidegate.records.segment_file import open_archive
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import connect_by_option

PACKAGES: Final = (
    "pyspark", "pyarrow", "numpy", "pandas", "protobuf", "redis", "hiredis", "crc32c", "cramjam", "lz4", "zstandard",
    "numba", "deltalake", "pyiceberg", "fastavro",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbeTargets:
    """What to look for; without secrets, for tasks carry it. `redis_url` is empty where each process finds its own.

    `folders`: what -> path or URI. `marker` is the name of a file that the driver puts there.
    """

    redis_url: str
    password_variable: str
    folders: dict[str, str]
    marker: str


def observe(wanted: ProbeTargets) -> dict[str, Any]:
    """All observations; failures are texts under `errors`."""
    wrong: dict[str, str] = {}
    reported: dict[str, Any] = {
        "host": socket.gethostname(),
        "process": f"{socket.gethostname()}:{os.getcwd()}",
        "python": platform.python_version(),
        "tidegate": tidegate.__version__,
        "packages": versions(),
        "errors": wrong,
    }
    try:
        reported["clock_skew_ms"] = clock_skew_ms(wanted)
    except (PipelineError, redis.RedisError, OSError) as error:
        wrong["redis"] = first_line(error)
    for what, path in wanted.folders.items():
        try:
            write_and_remove(path, wanted.marker)
        except (OSError, ValueError) as error:
            wrong[what] = first_line(error)
    return reported


def versions() -> dict[str, str]:
    """Version by package; those that are not installed are left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def clock_skew_ms(wanted: ProbeTargets) -> int:
    """How far this clock is ahead of Redis's."""
    client = connect_by_option(wanted.redis_url, wanted.password_variable)
    client.ping()
    before = time.time()
    seconds, microseconds = client.time()
    ahead_s = float((before + time.time()) / 2 - seconds - microseconds / 1e6)
    return round(ahead_s * 1000)


def write_and_remove(path: str, marker: str) -> None:
    """Create and remove a file; a file that the driver created must be visible. Raises OSError."""
    files, root = open_archive(path)
    name = f"{root}/.doctor-{uuid.uuid4().hex}"
    if files.get_file_info(f"{root}/{marker}").type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{path} is not the driver's: the file that it left is not here")
    with files.open_output_stream(name) as written:
        written.write(b"doctor")
    files.delete_file(name)


def first_line(error: Exception) -> str:
    """Its class and message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
