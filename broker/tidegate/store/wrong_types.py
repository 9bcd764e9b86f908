"""Names keys of another type than the layout has: somebody wrote to them, so every command on them fails.

What the key held is lost, but the foreign value may matter to whoever wrote it, so a person moves it away, with the
command that the log names. Then the product treats its own key as lost, and restores what it can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import structlog

from tidegate.store.link import Arg, OnReply

logger = structlog.get_logger()

_NAMED_MAX: Final = 1_000
"""Keys whose last line is remembered; above this all are forgotten, and may be named again."""
_AGAIN_S: Final = 60.0
"""Time after which a key that is still wrong is named again."""
_REFUSAL: Final = "WRONGTYPE"
_NAME: Final = re.compile(r"\{(cluster|at:\d+|co:\d+|.+)\}:(?:[0-9a-f]{32}:)?(.+)")
_ZSETS: Final = frozenset(
    {
        "acquired", "available", "changed-groups", "changed-logs", "consumer-sessions", "deadlines",
        "ended-transactions", "leases", "locks", "revocations", "segments", "sessions", "times",
        "transaction-deadlines", "translations", "upkeep",
    }
)  # fmt: skip
_STREAMS: Final = frozenset(
    {"audit", "audit-events", "compacted", "dead-letters", "events", "lag", "log", "records", "restored", "usage"}
)
_STRINGS: Final = frozenset({"producer-ids", "figures", "proof", "probe", "quota-bucket"})
_GROUP_PARTS: Final = 3


def type_of(name: str) -> str:
    """The type that docs/redis-layout.md gives a key of ours."""
    found = _NAME.search(name)
    parts = (found.group(2) if found else name).split(":")
    kind = parts[0]
    if kind == "group":
        kind = parts[_GROUP_PARTS] if len(parts) > _GROUP_PARTS else kind
        if kind == "share":
            kind = parts[-1]
    if kind in _ZSETS:
        return "zset"
    if kind in _STREAMS:
        return "stream"
    return "string" if kind in _STRINGS else "hash"


class WrongTypes:
    """Checks the keys of commands that Redis refused because of a key's type, and logs each wrong one once."""

    def __init__(self, prefix: str, send: Callable[[Sequence[Arg], OnReply], None]) -> None:
        self._prefix = f"{prefix}:"
        self._send = send
        self._named: dict[str, float] = {}

    def check(self, refusal: str, keys: Sequence[str]) -> None:
        """Read the types of the keys if `refusal` is about them."""
        if refusal.startswith(_REFUSAL):
            for name in keys:
                if not self._is_named(name) and name.startswith(self._prefix):
                    self._check(name)

    def _is_named(self, name: str) -> bool:
        return monotonic() - self._named.get(name, -_AGAIN_S) < _AGAIN_S

    def _check(self, name: str) -> None:
        wanted = type_of(name)

        def answered(reply: Any) -> None:
            if isinstance(reply, Exception) or reply.decode() in (wanted, "none") or self._is_named(name):
                return
            if len(self._named) >= _NAMED_MAX:
                self._named.clear()
            self._named[name] = monotonic()
            command = f"RENAME {name} {name}:foreign"
            logger.error("key_of_wrong_type", key=name, type=reply.decode(), wanted=wanted, command=command)

        self._send(["TYPE", name], answered)
