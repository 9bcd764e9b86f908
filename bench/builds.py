"""What was measured with: the build of the interpreter, and version and allocator of the Redis or Valkey server."""

from __future__ import annotations

import platform
import socket
import sysconfig
from typing import Final

_TIMEOUT_S: Final = 5.0


def interpreter(arguments: str | None = None) -> str:
    """Version and build of this interpreter; brokers run under it too.

    A build without profile-guided optimisation (PGO) is 20 to 30 % slower on some paths. `arguments` are those of its
    `configure`.
    """
    given = str(sysconfig.get_config_var("CONFIG_ARGS") or "") if arguments is None else arguments
    pgo = "PGO" if "--enable-optimizations" in given else "no PGO"
    lto = "LTO" if "--with-lto" in given and "--with-lto=no" not in given else "no LTO"
    return (
        f"{platform.python_implementation()} {platform.python_version()} ({pgo}, {lto}, {platform.python_compiler()})"
    )


def server(port: int) -> str:
    """Version and allocator of the server on a loopback port. Raises OSError.

    With glibc's malloc ("libc") the server spends a fifth of its CPU there while groups form; release builds have
    jemalloc.
    """
    return described(_info(port))


def described(info: dict[str, str]) -> str:
    """The server that gave this INFO."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "of unknown version")
    return f"{name} {version} (allocator {info.get('mem_allocator', 'unknown')})"


def _info(port: int) -> dict[str, str]:
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as sock, sock.makefile("rb") as stream:
        sock.sendall(b"INFO everything\r\n")
        size = int(stream.readline()[1:])
        text = stream.read(size).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
