"""The answers of scripts that store commits, for each of their commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.commits import QueuedBatch
from tidegate.store.batching import fail_waiter
from tidegate.store.node import Node
from tidegate.store.outcome import Failure

Prove = Callable[[Node, Callable[[bool], None]], None]
"""Calls back with whether everything that a node answered before is as durable as `durability` says."""

HandOut = Callable[[list[QueuedBatch], Sequence[int] | Failure], None]
_STORED: Final = 0
_TRY_AGAIN: Final = CoordinatorNotAvailable.code.value


def hand_out(queued: list[QueuedBatch], answer: Sequence[int] | Failure) -> None:
    """Call each commit's callback with its code."""
    if isinstance(answer, Failure):
        answer = [_TRY_AGAIN] * len(queued)
    for (_, on_code), code in zip(queued, answer, strict=True):
        try:
            on_code(code)
        except Exception:  # noqa: BLE001 - logged; the other commits are answered
            fail_waiter(on_code, _TRY_AGAIN)


def hand_out_proved(prove: Prove, node: Node, queued: list[QueuedBatch], answer: Sequence[int] | Failure) -> None:
    """The same once the stored ones are proved; what is not proved is answered as Kafka answers it."""
    if isinstance(answer, Failure) or _STORED not in answer:
        hand_out(queued, answer)
        return
    connection = node.control.failover_epoch

    def proved(held: bool) -> None:
        if held and node.control.failover_epoch == connection:  # else the proof may be another server's
            hand_out(queued, answer)
        else:
            hand_out(queued, [_TRY_AGAIN if code == _STORED else code for code in answer])

    prove(node, proved)
