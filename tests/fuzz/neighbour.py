"""Who must not notice: a client of its own process that asks and produces all the while.

`python -m tests.fuzz.neighbour <host:port> <pid>...` runs until its input ends, then prints its times as JSON: without
the time in which it or one of those processes waited for a processor.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient, request
from tests.support.error_codes import codes_in
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes
from tests.support.processor_waits import waited_s

TOPIC: Final = "neighbour"
EVERY_S: Final = 0.01
ANSWER_S: Final = 30.0


def served_ms(pids: Sequence[str]) -> float:
    """The clock, less the waits of these processes' main threads for a processor."""
    return (time.monotonic() - waited_s(pids)) * 1000


async def ask(address: str, pids: Sequence[str], times_ms: list[float]) -> None:
    """ApiVersions and Produce in turn, each timed."""
    versions = request(18, 3, client_software_name="neighbour", client_software_version="1")
    async with await RawClient.connect(address, TOPIC) as client:
        while True:
            for asked in (versions, produce_request([(TOPIC, [(0, batch_bytes())])])):
                began_ms = served_ms(pids)
                answer = await client.ask(asked, ANSWER_S)
                times_ms.append(served_ms(pids) - began_ms)
                assert set(codes_in(answer)) == {ErrorCode.none}, answer
                await asyncio.sleep(EVERY_S)


async def main(address: str, *pids: str) -> None:
    times_ms: list[float] = []
    asking = asyncio.create_task(ask(address, ["self", *pids], times_ms))
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((asking, over), return_when=asyncio.FIRST_COMPLETED)
    failure = repr(asking.exception()) if asking.done() else ""
    asking.cancel()
    times_ms.sort()
    p99 = times_ms[len(times_ms) * 99 // 100] if times_ms else 0.0
    print(json.dumps({"asked": len(times_ms), "p99_ms": p99, "max_ms": max(times_ms, default=0.0), "failure": failure}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
