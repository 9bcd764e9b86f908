"""What a reply means. Only this package reads the texts of Redis's errors and knows of Redis Cluster's redirects.

A caller that has many replies to take asks `failure_of` only for those that are not of the type it expects, so that
success costs no object; others match on `outcome_of`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import hiredis

from tidegate.errors import StoreUnavailable
from tidegate.store.slots import is_refusal

_NOT_ABOVE_LAST_ID: Final = "ERR The ID specified in XADD is equal or smaller"


@dataclass(frozen=True, slots=True)
class Ok:
    """The command ran; `value` is its reply."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """A command without a result; `text` is for people."""

    text: str

    @property
    def error(self) -> StoreUnavailable:
        """The failure as the exception that clients are answered with."""
        return StoreUnavailable(self.text)


class Stale(Failure):
    """Not run: another writer was first."""

    __slots__ = ()


class Gone(Failure):
    """Not run: the key does not exist."""

    __slots__ = ()


class Moved(Failure):
    """Not run: the key is at another server, or on its way there. The same command will run later."""

    __slots__ = ()


class Refused(Failure):
    """Not run: the server is full, read-only, still loading, or this user lacks the right."""

    __slots__ = ()


class Unknown(Failure):
    """Nobody knows whether it ran: no reply came, or it came from a server that no longer has the key."""

    __slots__ = ()


Outcome = Ok | Stale | Gone | Moved | Refused | Unknown


def failure_of(reply: object) -> Failure | None:
    """What a reply says of a command that gave no result; None for a result, also for a nil."""
    if isinstance(reply, hiredis.ReplyError):
        if is_refusal(reply):
            return Moved(str(reply))
        text = str(reply)
        return Stale(text) if text.startswith(_NOT_ABOVE_LAST_ID) else Refused(text)
    return Unknown(str(reply)) if isinstance(reply, Exception) else None


def outcome_of(reply: object) -> Ok | Failure:
    """The reply of a command as an outcome."""
    return failure_of(reply) or Ok(reply)


def append_failure_of(reply: object) -> Failure:
    """What a reply to `XADD key NOMKSTREAM` says that is no id."""
    return Gone("the stream does not exist") if reply is None else failure_of(reply) or Unknown(f"no id: {reply!r}")
