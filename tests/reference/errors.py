"""docs/errors.md: every error that a client can get, from the broker's error classes and from who raises them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

import tidegate
from tidegate import errors
from tidegate.apis.registry import load_all
from tidegate.errors import KafkaError

_ROOT: Final = Path(__file__).resolve().parents[2]

_API_VERSIONS: Final = 18
"""Is answered without Redis."""

_HEAD: Final = """\
# Errors

Made by `make docs` from the broker's error classes. Codes and names are Kafka's. *Retriable* is Kafka's word for:
clients ask again by themselves, and the application gets the error only when their time is up. Anything else reaches
the application.

{raised}

`UNKNOWN_SERVER_ERROR` is a bug of a broker: it is logged with a traceback, once. A request that no version of the
protocol explains gets no code: the connection is closed, and the log says `connection_refused_request`.

## While Redis is away

What needs Redis is answered with what clients of that API try again; whether a change took effect is not known.
Producers get `REQUEST_TIMED_OUT` for a batch that may be in the log, and `KAFKA_STORAGE_ERROR` for one that was not
appended; batches of an idempotent producer behind that one get the same answer until it comes again. librdkafka prints
`KAFKA_STORAGE_ERROR` as a disk error; no disk is meant. A Redis that is full (`maxmemory`) answers the same to
producers, while groups continue ([runbook](operations.md#tidegateredismemoryfull)).

| Error | Of |
|---|---|
{away}

Beside that, a broker never answers `NOT_COORDINATOR`, nor `NOT_LEADER_OR_FOLLOWER` ever: any broker serves every
group and partition ([0001](decisions/0001-stateless-brokers.md)).

## Declared, not answered to clients

They are for what [is not served](apis.md#not-served), or reported by [REST](admin-http.md) and commands alone:
{declared}.
"""


WITHOUT_CLASS: Final = {
    ErrorCode.delegation_token_auth_disabled: "Delegation tokens are not served.",
    ErrorCode.unknown_subscription_id: "Another subscription than of the metrics; the client asks again (KIP-714).",
    ErrorCode.rebootstrap_required: "The client's cluster or broker is another one: begin at the bootstrap addresses.",
}
"""What no class stands for, because it is answered in one place."""


def _classes() -> list[type[KafkaError]]:
    """One class a code, in the order of the codes; KafkaError itself is UNKNOWN_SERVER_ERROR.

    Of several with one code the first of `tidegate.errors`, else of a package's `errors`.
    """
    load_all()
    first: dict[int, type[KafkaError]] = {}
    for one in sorted(_derived(KafkaError), key=_place):
        first.setdefault(one.code.value, one)
    return [first[code] for code in sorted(first)]


def _derived(base: type[KafkaError]) -> Iterator[type[KafkaError]]:
    if base.__module__.startswith(f"{tidegate.__name__}."):
        yield base
    for one in base.__subclasses__():
        yield from _derived(one)


def _place(one: type[KafkaError]) -> tuple[bool, bool, str]:
    module = one.__module__
    return module != errors.__name__, not module.endswith(".errors"), module


@cache
def _texts() -> str:
    """The code that answers Kafka clients: scripts, and the broker without error lists, admin HTTP and CLI."""
    folders = ((_ROOT / "broker", "*.py"), (_ROOT / "redis_scripts", "*.lua"))
    paths = (path for folder, pattern in folders for path in sorted(folder.rglob(pattern)))
    others = {"errors.py", "errors.lua", "http", "cli"}
    return "\n".join(path.read_text() for path in paths if not others & {*path.relative_to(_ROOT).parts})


def answered(one: type[KafkaError]) -> bool:
    """Whether anything in the product answers with it: by its class, its code's name, or a script."""
    name = one.code.name
    words = rf"\b({one.__name__}|ErrorCode\.{name}|ERROR\.{name.upper()})\b"
    return one is KafkaError or re.search(words, _texts()) is not None


def _rows(classes: Iterable[type[KafkaError]]) -> Iterator[str]:
    meanings: dict[ErrorCode, str] = dict(WITHOUT_CLASS)
    for one in classes:
        reported = (one.__doc__ or "").split("\n", 1)[0]
        meaning = re.sub(r"^Retriable: (.)", lambda found: found[1].upper(), reported)
        meanings[one.code] = "A bug of the broker." if one is KafkaError else meaning
    for code in sorted(meanings, key=lambda code: code.value):
        yield f"| {code.value} | `{code.name.upper()}` | {'yes' if code.retriable else ''} | {meanings[code]} |"


def page() -> str:
    """The page."""
    classes = _classes()
    rows = "\n".join(_rows(one for one in classes if answered(one)))
    declared = ", ".join(f"`{one.code.name.upper()}`" for one in classes if not answered(one))
    raised = f"| Code | Name | Retriable | When |\n|---|---|---|---|\n{rows}"
    return _HEAD.format(raised=raised, away="\n".join(_away()), declared=declared)


def _away() -> Iterator[str]:
    """The table of what each API answers without Redis."""
    apis: dict[str, list[str]] = {}
    for key, api in sorted(load_all().items()):
        if key != _API_VERSIONS:
            apis.setdefault(api.away.name.upper(), []).append("".join(word.title() for word in api.name.split("_")))
    yield from (f"| `{code}` | {', '.join(names)} |" for code, names in apis.items())
