"""The proofs of one partition's log, which it shares with the other callers of its server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.log.high_watermark import HighWatermark
from tidegate.store.batching import Coalescer


async def test_high_watermark_moves_on_after_another_caller_of_its_proof_raised() -> None:
    proofs = Coalescer[bool](lambda: None)
    state = SimpleNamespace(end=5, high_watermark=0, stored_high_watermark=0)
    log: Any = SimpleNamespace(
        durability=SimpleNamespace(immediate=False, prove=lambda node, on_proved: proofs.add(on_proved)),
        lanes=SimpleNamespace(node=None),
        state=state,
        voids=0,
        guarded=lambda callback, *args: callback(*args),
    )
    high_watermark = HighWatermark(log, lambda: None, lambda: None)

    def fail(_: bool) -> None:
        raise MemoryError

    proofs.add(fail)
    high_watermark.prove()
    await asyncio.sleep(0)
    proofs.finish(True)
    assert state.high_watermark == 5

    state.end = 7
    high_watermark.prove()
    await asyncio.sleep(0)
    proofs.finish(True)
    assert state.high_watermark == 7
