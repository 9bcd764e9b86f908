"""Schema-aware fuzzing of a live broker: every request is answered as its schema says, or its connection is closed.

Beside it a neighbour asks all the while. At the end the broker lives, has not grown, has logged no traceback and holds
the answers that it owes: nothing else is expected of requests that mean nothing.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.serial.errors import OutOfBoundValue

from bench.cluster import REPOSITORY, Cluster
from tests.chaos.hostile import CALLBACK_MS_MAX, SLOWEST_MS_MAX, measured_broker
from tests.fuzz.requests import GROUPS, TOPICS, frame
from tests.kit.member import Member
from tests.kit.wire import RawClient, decode_response
from tests.support.broker_logs import tracebacks
from tests.support.log_broker import fetch_request, produce_request
from tests.support.logs import batch_bytes
from tidegate.apis.registry import Api, load_all
from tidegate.protocol.versions import is_old

CONNECTIONS: Final = 6
ANSWER_S: Final = 60.0
ANSWERED_MIN: Final = 100
"""What a run must have asked before it ends, even where the machine is slow: then up to LOADED_S longer."""
LOADED_S: Final = 200.0
PARKED_S: Final = 0.3
"""Then the connection of a request that need not be answered soon is given up."""
P99_MS_MAX: Final = 50.0
"""Of the neighbour's answers."""
GROWN_MIB_MAX: Final = 256.0
PARTITIONS: Final = 300
"""Of the first topic; the group `group` has an offset of each."""
PRODUCERS: Final = 200
"""Of its first partition, each with one batch."""
REFILL_S: Final = 1.0
_NO_TIME: Final = {(api_key, "Cannot parse negative timestamp") for api_key in (38, 39, 40, 65)}
"""A refused delegation token has times of -1, and so has a transaction that has not begun (DescribeTransactions), as in
Kafka; kio reads no such time."""
_STALLED: Final = re.compile(r"event_loop_stalled.*?stall_ms=([\d.]+)")


@dataclass(slots=True)
class Findings:
    """What a run saw."""

    executions: Counter[str] = field(default_factory=Counter)
    """By what came of them: answered, closed, parked."""
    by_api: Counter[tuple[int, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    neighbour: dict[str, Any] = field(default_factory=dict)
    stalled_ms: list[float] = field(default_factory=list)
    longest_ms: float = 0.0
    """CPU time of the longest callback of the broker's event loop, and what it was."""
    longest: str = ""
    grown_mib: float = 0.0

    def failures(self) -> list[str]:
        """What was wrong, and the limits that were not kept."""
        p99_ms, max_ms = (self.neighbour.get(name, math.inf) for name in ("p99_ms", "max_ms"))
        limits = {
            f"the neighbour's p99 was {p99_ms:.0f} ms": p99_ms < P99_MS_MAX,
            f"the neighbour's slowest answer took {max_ms:.0f} ms": max_ms < SLOWEST_MS_MAX,
            f"a callback of the event loop took {self.longest_ms:.0f} ms: {self.longest}": self.longest_ms
            < CALLBACK_MS_MAX,
            f"memory grew by {self.grown_mib:.0f} MiB": self.grown_mib < GROWN_MIB_MAX,
        }
        return [*self.wrong, *(text for text, is_kept in limits.items() if not is_kept)]

    def lines(self) -> list[str]:
        """For people."""
        failures = self.failures()
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.executions.items()))
        return [
            f"{self.executions.total()} requests of {len(self.by_api)} API versions: {outcomes}",
            f"neighbour: {self.neighbour}",
            f"stalls of the event loop: {len(self.stalled_ms)}, the longest {max(self.stalled_ms, default=0):.0f} ms",
            f"longest callback: {self.longest_ms:.0f} ms",
            f"memory: {self.grown_mib:+.0f} MiB",
            f"findings: {len(failures)}",
            *failures[:20],
        ]


class Fuzzer:
    """One connection after another, each with requests until the broker closes it."""

    def __init__(self, address: str, seed: int, findings: Findings, apis: Sequence[Api]) -> None:
        self._address, self._findings, self._apis = address, findings, apis
        self._random = random.Random(seed)
        self._made = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, until: float) -> None:
        """Until that time of the monotonic clock; on a loaded machine longer, until enough was answered."""
        while self._is_served(until):
            api = self._random.choice(self._apis)
            version = self._random.randint(api.first, api.last)
            request, is_answered = frame(api.key, version, self._random)
            outcome = await self._ask(api.key, version, request, is_answered)
            self._findings.executions[outcome] += 1
            self._findings.by_api[api.key, version] += 1
        await self._hang_up()

    def _is_served(self, until: float) -> bool:
        now, answered = time.monotonic(), self._findings.executions["answered"]
        return now < until or (answered <= ANSWERED_MIN and now < until + LOADED_S)

    async def _ask(self, api_key: int, version: int, request: bytes, is_answered: bool) -> str:
        host, port = self._address.split(":")
        if self._streams is None:
            self._streams = await asyncio.open_connection(host, int(port), limit=1 << 26)
        reader, writer = self._streams
        writer.write(request)
        try:
            size = await asyncio.wait_for(reader.readexactly(4), ANSWER_S if is_answered else PARKED_S)
            answer = await asyncio.wait_for(reader.readexactly(*struct.unpack(">i", size)), ANSWER_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._hang_up()
            return "closed"
        except TimeoutError:
            await self._hang_up()
            if not is_answered:
                return "parked"
            self._wrong(api_key, version, request, f"no answer in {ANSWER_S:.0f} s")
            return "silence"
        if is_old(api_key, version):  # kio has no schema of its answers
            return "answered"
        try:
            decode_response(api_key, version, answer)
        except OutOfBoundValue as error:
            if (api_key, str(error)) not in _NO_TIME:
                self._wrong(api_key, version, request, f"{error!r}: {answer[:80].hex()}")
        except Exception as error:  # noqa: BLE001 - whatever the schema's reader says
            self._wrong(
                api_key, version, request, f"an answer that its schema does not read ({error!r}): {answer[:80].hex()}"
            )
        return "answered"

    async def _hang_up(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def _wrong(self, api_key: int, version: int, request: bytes, what: str) -> None:
        self._findings.wrong.append(f"API {api_key} v{version}: {what}; request {request[:400].hex()}")


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def fill(address: str) -> None:
    """Topics, a group with offsets, and a partition with batches and producers, so that requests find something."""
    topic = TOPICS[0]
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    created = admin.create_topics([NewTopic(topic, PARTITIONS, 1), NewTopic(TOPICS[1], 3, 1)])
    await asyncio.to_thread(wait, created.values(), ANSWER_S)
    offsets = ConsumerGroupTopicPartitions(GROUPS[0], [TopicPartition(topic, index, 1) for index in range(PARTITIONS)])
    (committed,) = admin.alter_consumer_group_offsets([offsets]).values()
    await asyncio.to_thread(committed.result, ANSWER_S)
    async with await RawClient.connect(address, topic) as client:
        for producer_id in range(PRODUCERS):
            records = batch_bytes(producer_id=producer_id, epoch=0, sequence=0)
            await client.ask(produce_request([(topic, [(0, records)])]), ANSWER_S)


async def refill(address: str, findings: Findings) -> None:
    """Fill again for ever, for the requests delete topics and groups; and probe."""
    while True:
        await asyncio.sleep(REFILL_S)
        with suppress(KafkaException, asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            await fill(address)
        findings.wrong += await probe(address)


async def probe(address: str) -> list[str]:
    """What does not answer well-formed requests that wait: a Fetch, the JoinGroup and SyncGroup of a new group."""
    async with await RawClient.connect(address) as client:
        member = Member(client, f"probe-{uuid4().hex}")
        waiting = {
            "Fetch": lambda: client.ask(fetch_request([(TOPICS[0], [(0, 0)])], max_wait_ms=100), ANSWER_S),
            "JoinGroup": lambda: member.join(ANSWER_S),
            "SyncGroup": lambda: member.sync({member.member_id: b"all"}, ANSWER_S),
            "LeaveGroup": member.leave,
        }
        for name, ask in waiting.items():
            try:
                await ask()
            except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
                return [f"{name}: no answer to a well-formed request: {error!r}"]
    return []


async def fuzz(seconds: float, seed: int, apis: Sequence[int] = ()) -> Findings:
    """One broker, requests for so long; `apis` restricts them to these."""
    findings = Findings()
    chosen = [api for api in load_all().values() if not apis or api.key in apis]
    with Cluster(brokers=0) as cluster:
        broker = await asyncio.to_thread(measured_broker, cluster)
        await fill(broker.address)
        await asyncio.to_thread(broker.longest_callback)  # what follows is measured
        neighbour = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.fuzz.neighbour", broker.address, *map(str, cluster.pids)),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        before = _resident_mib(broker.pid)
        ends = time.monotonic() + seconds
        fuzzers = [Fuzzer(broker.address, seed * 1_000 + number, findings, chosen) for number in range(CONNECTIONS)]
        refilling = asyncio.create_task(refill(broker.address, findings))
        outcomes = await asyncio.gather(*(one.run(ends) for one in fuzzers), return_exceptions=True)
        refilling.cancel()
        with suppress(asyncio.CancelledError):
            await refilling
        findings.wrong += await probe(broker.address)
        findings.wrong += [f"the broker went away: {one!r}" for one in outcomes if isinstance(one, BaseException)]
        output, _ = await neighbour.communicate(b"")
        findings.neighbour = json.loads(output or b'{"failure": "it ended"}')
        if findings.neighbour["failure"]:
            findings.wrong.append(f"the neighbour was harmed: {findings.neighbour['failure']}")
        assert broker.process is not None
        if broker.process.poll() is not None:
            findings.wrong.append(f"the broker ended with {broker.process.returncode}")
        else:
            findings.grown_mib = _resident_mib(broker.pid) - before
            findings.longest_ms, findings.longest = await asyncio.to_thread(broker.longest_callback)
        findings.stalled_ms = [float(one) for one in _STALLED.findall(broker.log_path.read_text())]
        if trace := tracebacks(cluster):
            findings.wrong.append(trace)
    return findings
