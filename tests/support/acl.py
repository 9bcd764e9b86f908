"""The tests as the Redis user that `acl_rules` describes: `TIDEGATE_TEST_ACL=1`, or `make test SUITE=acl`.

Servers get that user, brokers log in as it, and all that scripts and brokers do they do with its rights alone. What a
test asks for by itself (FLUSHALL, CONFIG, a look at a key) is the operator's: its own commands go out as the default
user, on the same connection, between two AUTHs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster, server_binary
from tests.support.waitaof import has_waitaof
from tidegate.cluster.acl import acl_rules
from tidegate.settings import Settings
from tidegate.store.addresses import Address, Topology
from tidegate.store.link import Arg, Link

ON: Final = os.environ.get("TIDEGATE_TEST_ACL") == "1"
USER: Final = "by-the-rules"

_EVERYTHING: Final = Settings(redis_url="redis+sentinel://localhost/main/1", durability="fsynced:1")
"""Each setting that asks for a right more."""
_TESTS: Final = str(Path(__file__).parent.parent)


@cache
def server_options(binary: str) -> tuple[str, ...]:
    """What the server's command line says of the user; nothing without `TIDEGATE_TEST_ACL`."""
    if not ON:
        return ()
    rules = acl_rules(_EVERYTHING)
    if not has_waitaof(binary):
        rules.remove("+waitaof")
    return ("--user", USER, "on", f">{USER}", *rules, "%R~test:now_ms")  # of tests.support.clock


def install() -> None:
    """Have every store of this process, and every broker of a `bench.cluster.Cluster`, log in as the user."""
    if not ON:
        return
    plain_address, plain_call, plain_init = Topology.address, Link.call, Cluster.__init__

    def init(self: Cluster, *args: Any, **options: Any) -> None:
        plain_init(self, *args, **options)
        if self._own_server:
            self._server_options += server_options(server_binary())
            url = self.redis_url.replace("://", f"://{USER}:{USER}@")
            self.settings["TIDEGATE_REDIS_URL"] = url  # of brokers alone: operators' commands go by `redis_url`

    def address(self: Topology, *where: Any) -> Address:
        known = plain_address(self, *where)
        if known.password is not None:
            return known
        return Address(known.host, known.port, USER, USER, known.database, known.tls)

    def call(self: Link, *args: Arg, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        logged_in = self.connected and self.address is not None and self.address.username == USER
        if not logged_in or not _asked_by_a_test():
            return plain_call(self, *args, timeout_ms=timeout_ms)
        self.send(["AUTH", "default", ""], _ignore)
        answer = plain_call(self, *args, timeout_ms=timeout_ms)
        self.send(["AUTH", USER, USER], _ignore)
        return answer

    Cluster.__init__ = init  # type: ignore[method-assign]
    Topology.address = address  # type: ignore[method-assign]
    Link.call = call  # type: ignore[method-assign]


def _asked_by_a_test() -> bool:
    """Whether `Link.call`, or the `Store.command` or `Store.read` above it, was written in a test."""
    frame = sys._getframe(2)
    if frame.f_code.co_name in ("command", "read") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TESTS)


def _ignore(_: Any) -> None:
    """Of no interest: where the login fails, the command does too."""
