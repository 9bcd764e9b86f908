"""The bench names the builds that it measured with: they change figures as much as code does."""

from __future__ import annotations

import platform

import pytest

from bench import builds
from tests.support.valkey import ValkeyServer


@pytest.mark.parametrize(
    ("arguments", "build"),
    [
        ("'--enable-optimizations' '--with-lto'", "(PGO, LTO, "),
        ("'--enable-optimizations' '--with-lto=no'", "(PGO, no LTO, "),
        ("'--enable-shared'", "(no PGO, no LTO, "),
    ],
)
def test_interpreter_names_its_build(arguments: str, build: str) -> None:
    found = builds.interpreter(arguments)

    assert found.startswith(f"{platform.python_implementation()} {platform.python_version()} {build}")


def test_server_names_version_and_allocator(valkey: ValkeyServer) -> None:
    found = builds.server(int(valkey.url.rpartition(":")[2].split("/")[0]))

    name, version, _, allocator = found.split()
    assert name in ("Valkey", "Redis")
    assert version[0].isdigit()
    assert allocator != "unknown)"


def test_described_redis_without_valkeys_fields() -> None:
    info = {"redis_version": "7.4.2", "mem_allocator": "jemalloc-5.3.0"}

    assert builds.described(info) == "Redis 7.4.2 (allocator jemalloc-5.3.0)"
