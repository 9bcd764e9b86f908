"""Reads of Redis that planning makes for many partitions at once: a pipeline for all, instead of a trip for each.

What is planned for one partition is a generator: it yields the reads that it needs and is sent their replies.
`plan_together` drives any number of them in step, so that a thousand partitions take as many round trips as one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis

from tidegate.store.scripts import Script
from tidegate_pipeline.errors import LogGone
from tidegate_pipeline.redis_access import AWAY, Client, retry_while_unavailable

Result = TypeVar("Result")

PIPELINE_MAX: Final = 1_024
"""Commands of one pipeline."""
_WALK_BYTES: Final = 8 << 20
_WALK_BYTES_MIN: Final = 256 << 10
"""Bytes that a script walks in one call, of all in a pipeline and of each: Redis answers others between them."""


@dataclass(frozen=True, slots=True)
class Read:
    """A command, or a script by `script`, and what becomes of its reply. `parse` may raise PipelineError.

    `is_bounded`: the script takes the bytes that it may walk as its last argument.
    """

    args: tuple[str | int, ...]
    parse: Callable[[Any], Any]
    script: Script | None = None
    is_bounded: bool = False

    def command(self, walk_bytes: int, *, by_source: bool = False) -> tuple[str | int | bytes, ...]:
        """As redis-py takes it; with the source of a script that the server does not have."""
        bound = (walk_bytes,) if self.is_bounded else ()
        if self.script is None:
            return self.args
        if by_source:
            return ("EVAL", self.script.source, *self.args, *bound)
        return ("EVALSHA", self.script.sha, *self.args, *bound)


Planning = Generator[Read, Any, Result]


def plan_together(client: Client, plans: Sequence[Planning[Result]], retry_s: float) -> list[Result]:
    """The results, in order. Raises what one of them raises, PipelineError where Redis is away for too long."""
    results: dict[int, Result] = {}
    waiting: dict[int, Read] = {}

    def advance(at: int, step: Callable[[], Read]) -> None:
        try:
            waiting[at] = step()
        except StopIteration as stop:
            results[at] = stop.value

    for at, plan in enumerate(plans):
        advance(at, lambda plan=plan: next(plan))  # type: ignore[misc]
    while waiting:
        asked = list(waiting.items())
        waiting.clear()
        for (at, _), reply in zip(asked, read_all(client, [read for _, read in asked], retry_s), strict=True):
            resume = plans[at].throw if isinstance(reply, LogGone) else plans[at].send
            advance(at, lambda resume=resume, reply=reply: resume(reply))  # type: ignore[misc]
    return [results[at] for at in range(len(plans))]


def read_all(client: Client, reads: Sequence[Read], retry_s: float) -> list[Any]:
    """The parsed replies; LogGone in the place of a reply that says so. Raises PipelineError."""
    found: list[Any] = []
    for at in range(0, len(reads), PIPELINE_MAX):
        chunk = reads[at : at + PIPELINE_MAX]
        found += retry_while_unavailable(lambda chunk=chunk: _replies(client, chunk), retry_s)  # type: ignore[misc]
    return [_parsed(read, reply) for read, reply in zip(reads, found, strict=True)]


def _replies(client: Client, reads: Sequence[Read]) -> list[Any]:
    walk_bytes = max(_WALK_BYTES // max(len(reads), 1), _WALK_BYTES_MIN)
    replies: dict[int, Any] = {}
    missing = list(range(len(reads)))
    while missing:
        with client.pipeline(transaction=False) as pipeline:
            for at in missing:
                pipeline.execute_command(*reads[at].command(walk_bytes))
            for at, reply in zip(missing, pipeline.execute(raise_on_error=False), strict=True):
                if isinstance(reply, AWAY):
                    raise reply
                replies[at] = reply
        missing = [at for at in missing if isinstance(replies[at], redis.exceptions.NoScriptError)]
        if missing:  # the first one loads it where its key is: on one server, or on one node
            first = missing.pop(0)
            replies[first] = client.execute_command(*reads[first].command(walk_bytes, by_source=True))
    for reply in replies.values():
        if isinstance(reply, Exception):
            raise reply
    return [replies[at] for at in range(len(reads))]


def _parsed(read: Read, reply: Any) -> Any:
    try:
        return read.parse(reply)
    except LogGone as gone:
        return gone
