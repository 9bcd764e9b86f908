"""docs/errors.md: every error that a client can get, from broker/tidegate/errors.py and from who raises it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tidegate import errors
from tidegate.apis.registry import load_all
from tidegate.errors import KafkaError

_ROOT: Final = Path(__file__).resolve().parents[2]

_API_VERSIONS: Final = 18
"""Is answered without Redis."""

_HEAD: Final = """\
# Errors

Made by `make docs` from `broker/tidegate/errors.py`. Codes and names are Kafka's. *Retriable* is Kafka's word for:
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


def _classes() -> list[type[KafkaError]]:
    """One class a code, in the order of the codes; KafkaError itself is UNKNOWN_SERVER_ERROR."""
    own = (one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, KafkaError))
    first: dict[int, type[KafkaError]] = {}
    for one in own:
        first.setdefault(one.code.value, one)
    return [first[code] for code in sorted(first)]


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
    for one in classes:
        reported = (one.__doc__ or "").split("\n", 1)[0]
        meaning = re.sub(r"^Retriable: (.)", lambda found: found[1].upper(), reported)
        meaning = "A bug of the broker." if one is KafkaError else meaning
        yield f"| {one.code.value} | `{one.code.name.upper()}` | {'yes' if one.code.retriable else ''} | {meaning} |"


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
