"""Classify replies. Only this package parses the error texts of Redis and the redirects of Redis Cluster.

Callers on the hot path call `failure_of` only for replies of an unexpected type, so a success allocates no object;
others match on `outcome_of`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from tidegate.errors import StoreUnavailable
from tidegate.store.slots import is_refusal

_NOT_ABOVE_LAST_ID: Final = "ERR The ID specified in XADD is equal or smaller"
_WRONG_TYPE: Final = "WRONGTYPE"
_FAULTY_KEY: Final = (_WRONG_TYPE, "ERR ")
"""Starts of errors that one key may cause; others (READONLY, OOM, LOADING) hold for every key of the server."""
_IN_SCRIPT: Final = (" script: ", "in script", "running script")
"""In the errors of a script that ran; the others are of a command that did not."""


class StoreRefused(StoreUnavailable):
    """Redis answered with an error, which a repeat would not change.

    `may_have_written`: a script failed while it ran; what it wrote before stays.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.may_have_written = any(part in text for part in _IN_SCRIPT)
        self.is_wrong_type = text.startswith(_WRONG_TYPE)


class FaultyKeys(StoreRefused):
    """A key has another type, or holds what nobody can read. Redis answers, and other keys are served."""


@dataclass(frozen=True, slots=True)
class Ok:
    """The command ran; `value` is its reply."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """A command without a result; `text` is for humans."""

    text: str

    @property
    def error(self) -> StoreUnavailable:
        """The failure as the exception for clients."""
        return StoreUnavailable(self.text)


class Stale(Failure):
    """Not executed: another writer was first."""

    __slots__ = ()


class Gone(Failure):
    """Not executed: the key does not exist."""

    __slots__ = ()


class Moved(Failure):
    """Not executed: another server has the key, or the slot is migrating. The same command will succeed later."""

    __slots__ = ()


class Refused(Failure):
    """Not executed: the server is out of memory, read-only, still loading, or this user lacks the right."""

    __slots__ = ()

    @property
    def error(self) -> StoreRefused:
        """The failure as the exception for clients."""
        return StoreRefused(self.text)


class Faulty(Refused):
    """A script failed, perhaps by what one of its keys contains; other keys are served."""

    __slots__ = ()

    @property
    def error(self) -> FaultyKeys:
        """The failure as the exception for clients, by which work on many keys leaves these out."""
        return FaultyKeys(self.text)


class Unknown(Failure):
    """Possibly executed: no reply arrived, or it came from a server that no longer has the key."""

    __slots__ = ()


Outcome = Ok | Stale | Gone | Moved | Refused | Unknown


def failure_of(reply: object) -> Failure | None:
    """The failure that a reply represents; None for a result, also for nil."""
    if isinstance(reply, hiredis.ReplyError):
        if is_refusal(reply):
            return Moved(str(reply))
        text = str(reply)
        return Stale(text) if text.startswith(_NOT_ABOVE_LAST_ID) else Refused(text)
    return Unknown(str(reply)) if isinstance(reply, Exception) else None


def script_failure_of(text: str) -> Refused:
    """The failure for the error reply of a script that was executed."""
    return Faulty(text) if text.startswith(_FAULTY_KEY) else Refused(text)


def outcome_of(reply: object) -> Ok | Failure:
    """The reply of a command as an outcome."""
    return failure_of(reply) or Ok(reply)


def error_of_command(text: str) -> StoreUnavailable:
    """The exception for the error reply of a single command, which names no other key."""
    return FaultyKeys(text) if text.startswith(_WRONG_TYPE) else StoreUnavailable(text)


async def outcome_of_call(call: Awaitable[Any]) -> Ok | Failure:
    """The outcome of a command that raises its error reply. Raises StoreUnavailable without a reply."""
    try:
        return Ok(await call)
    except hiredis.ReplyError as error:
        return outcome_of(error)


def append_failure_of(reply: object) -> Failure:
    """The failure of an `XADD key NOMKSTREAM` whose reply is not an id."""
    return Gone("the stream does not exist") if reply is None else failure_of(reply) or Unknown(f"no id: {reply!r}")
