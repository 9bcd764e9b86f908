"""Redis Cluster slots: the slot of a key, the reply of `CLUSTER SLOTS`, the text of redirects. No I/O."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import hiredis

from tidegate.store.link import Arg

SLOTS: Final = 16_384
Place = tuple[str, int]
"""Host and port of a node, as it announces them."""

_WITHOUT_KEY: Final = frozenset({"CLUSTER", "FUNCTION", "INFO", "PING", "PUBLISH", "SCRIPT", "TIME"})
_KEY_AT: Final = {"EVAL": 3, "EVALSHA": 3, "FCALL": 3, "MEMORY": 2, "XGROUP": 2, "XINFO": 2}
_REFUSALS: Final = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN")


CACHED_KEY_LENGTH_MAX: Final = 256
"""Longest key whose slot is cached: 16,384 keys of 32 kB would take 500 MB."""


def key_slot(key: str) -> int:
    """The slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key without one."""
    return cached_slot(key) if len(key) <= CACHED_KEY_LENGTH_MAX else cached_slot.__wrapped__(key)


@lru_cache(maxsize=16_384)
def cached_slot(key: str) -> int:
    """The slot of a key that is not longer than `CACHED_KEY_LENGTH_MAX`."""
    start = key.find("{") + 1
    end = key.find("}", start) if start else -1
    return crc_hqx((key[start:end] if end > start else key).encode(), 0) % SLOTS


def key_of(args: Sequence[Arg]) -> str | None:
    """The first key that a command names, or None."""
    name = str(args[0])
    at = _KEY_AT.get(name, 1)
    if name in _WITHOUT_KEY or len(args) <= at:
        return None
    key = args[at]
    return key.decode() if isinstance(key, bytes) else str(key)


@dataclass(frozen=True, slots=True)
class Owned:
    """A range of slots, both ends inclusive, and its primary."""

    first: int
    last: int
    place: Place


def parse_slots(reply: Sequence[Any], asked_host: str) -> list[Owned]:
    """Parse `CLUSTER SLOTS`: the primary of each range. A node without a host is at `asked_host`."""
    runs = ((first, last, (primary[0] or b"").decode(), primary[1]) for first, last, primary, *_ in reply)
    return [Owned(first, last, (_host(host, asked_host), port)) for first, last, host, port in runs]


def _host(reported: str, asked_host: str) -> str:
    return asked_host if reported in ("", "?") else reported


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node did not execute a command; the command changed nothing and may be sent again.

    `kind` is MOVED or ASK with the place to go to, TRYAGAIN or CLUSTERDOWN without.
    """

    kind: str
    slot: int = -1
    place: Place | None = None


def is_refusal(reply: Any) -> bool:
    """Whether an error reply is a redirect or asks for a retry."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_REFUSALS)


def parse_refusal(text: str, asked_host: str) -> Refusal:
    """Parse `MOVED 3999 host:port`, `ASK 3999 host:port`, `TRYAGAIN …`, `CLUSTERDOWN …`."""
    kind, *words = text.split()
    if kind not in ("MOVED", "ASK"):
        return Refusal(kind)
    host, _, port = words[1].rpartition(":")
    return Refusal(kind, int(words[0]), (_host(host, asked_host), int(port)))
