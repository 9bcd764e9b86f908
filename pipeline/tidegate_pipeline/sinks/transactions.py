"""Ends the transactions of a micro-batch: all of them or none, once, whatever is killed.

Each task writes in a transaction of its own and leaves it open. The driver records in the offsets of a consumer group
that micro-batch N is decided, with the list of its transactions, in one OffsetCommit; then it commits them. What a
micro-batch that runs again finds:

- no decision for N: the tasks initialise their transactional ids, which aborts what was left open, and write again;
- a decision for N: the tasks write nothing, and the driver commits what is left of the recorded list.

An open transaction is aborted by the brokers after `transaction.timeout.ms`. If that happens to all transactions of a
decided micro-batch the decision is withdrawn and the query writes again; if it happens to some of them the query fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.transaction import EndTxnRequest, InitProducerIdRequest

from tidegate_pipeline.errors import DataLoss, PipelineError
from tidegate_pipeline.sinks.sink_options import SinkOptions

METADATA_MAX: Final = 4_000
"""Characters of commit metadata; brokers take 4,096 bytes (offset.metadata.max.bytes)."""
_ENDED_AT_ONCE_MAX: Final = 32
_ABORTED_TIMEOUT_MS: Final = 60_000
"""Of a producer id that is asked for to abort what had it before; nothing is written with it."""
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_NOT_OPEN: Final = frozenset({47, 48, 49, 90})
"""INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED: it ended otherwise."""
_CONCURRENT_TRANSACTIONS: Final = 51


class PreparedTransaction(NamedTuple):
    """A transaction with all records of a task, still open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Micro-batch `batch_id` is to be committed with these transactions; none: the decision was withdrawn."""

    batch_id: int
    transactions: tuple[PreparedTransaction, ...]
    places: tuple[tuple[str, int], ...]
    """Where it is recorded: topic partitions of the group's offsets."""


class TransactionClient:
    """Requests of the transactions' and the group's coordinator, tried again until `timeout_s` has passed."""

    def __init__(self, client: AIOKafkaClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def decided(self, group: str) -> Decision | None:
        """The newest decision. Raises PipelineError."""

        async def ask(node: int) -> tuple[list[int], Any]:
            reply = await self._send(node, OffsetFetchRequest(group, None))
            return [reply.error_code], reply

        reply = await self._until_answered(group, CoordinationType.GROUP, ask)
        found = sorted(
            (offset, topic, partition, metadata)
            for topic, partitions in reply.topics
            for partition, offset, metadata, _ in partitions
            if offset >= 0
        )
        newest = [row for row in found if row[0] == found[-1][0]]
        if not newest:
            return None
        return Decision(
            newest[0][0],
            _decoded("".join(metadata for *_, metadata in newest), group),
            tuple((topic, partition) for _, topic, partition, _ in newest),
        )

    async def decide(self, group: str, decision: Decision) -> None:
        """Record a decision in one request. Raises PipelineError."""
        chunks = _chunks(decision.transactions, group) or [""] * len(decision.places)
        if len(chunks) > len(decision.places):
            raise PipelineError(
                f"micro-batch {decision.batch_id}: {len(decision.transactions)} tasks are too many to commit them"
                f" together to {len(decision.places)} partitions: coalesce the rows to fewer"
            )
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, partition), chunk in zip(decision.places, chunks, strict=False):
            topics.setdefault(topic, []).append((partition, decision.batch_id, chunk))

        async def ask(node: int) -> tuple[list[int], None]:
            request = OffsetCommitRequest(
                group, OffsetCommitRequest.DEFAULT_GENERATION_ID, "", OffsetCommitRequest.DEFAULT_RETENTION_TIME,
                list(topics.items()),
            )  # fmt: skip
            reply = await self._send(node, request)
            return [code for _, partitions in reply.topics for _, code in partitions], None

        await self._until_answered(group, CoordinationType.GROUP, ask)

    async def end_all(self, transactions: Iterable[PreparedTransaction], *, is_commit: bool) -> list[bool]:
        """End transactions, some at a time; False for one that ended otherwise before. Raises PipelineError."""
        limit = asyncio.Semaphore(_ENDED_AT_ONCE_MAX)

        async def end(one: PreparedTransaction) -> bool:
            async with limit:
                return await self._end(one, is_commit)

        return list(await asyncio.gather(*map(end, transactions)))

    async def abort_earlier(self, transactions: Iterable[PreparedTransaction]) -> None:
        """Abort what attempts of the same tasks left open that were killed: readers would wait until it times out.

        Nothing depends on it, so what fails is left to that. Only after the transactions themselves have ended.
        """

        async def abort(transactional_id: str) -> None:
            async def ask(node: int) -> tuple[list[int], None]:
                reply = await self._send(node, InitProducerIdRequest(transactional_id, _ABORTED_TIMEOUT_MS))
                return [reply.error_code], None

            with suppress(PipelineError):
                await self._until_answered(transactional_id, CoordinationType.TRANSACTION, ask)

        await asyncio.gather(*map(abort, chain.from_iterable(map(_earlier_attempts, transactions))))

    async def _end(self, one: PreparedTransaction, is_commit: bool) -> bool:
        async def ask(node: int) -> tuple[list[int], bool]:
            reply = await self._send(node, EndTxnRequest(*one, is_commit))
            is_open = reply.error_code not in _NOT_OPEN
            return [reply.error_code if is_open else 0], is_open

        is_open: bool = await self._until_answered(one.transactional_id, CoordinationType.TRANSACTION, ask)
        return is_open

    async def _send(self, node: int, request: Any) -> Any:
        return await self._client.send(node, request, group=ConnectionGroup.COORDINATION)

    async def _until_answered(
        self, key: str, kind: CoordinationType, ask: Callable[[int], Awaitable[tuple[list[int], Any]]]
    ) -> Any:
        """What `ask` gives with its error codes; errors that may pass are tried again, at the coordinator of then."""
        deadline, pause_s = time.monotonic() + self._timeout_s, _PAUSE_S
        while True:
            try:
                codes, result = await ask(await self._client.coordinator_lookup(kind, key))
                failed = next((for_code(code) for code in codes if code), None)
                if failed is None:
                    return result
                raise failed()
            except KafkaError as error:
                if not (error.retriable or error.errno == _CONCURRENT_TRANSACTIONS) or time.monotonic() > deadline:
                    raise PipelineError(f"{key}: {type(error).__name__}: {error}") from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)
            await self._client.force_metadata_update()


@asynccontextmanager
async def connected(options: SinkOptions) -> AsyncIterator[TransactionClient]:
    """A connection of the driver. Raises PipelineError."""
    client = AIOKafkaClient(**options.connection())
    try:
        await client.bootstrap()
        yield TransactionClient(client, options.delivery_timeout_s)
    except KafkaError as error:
        raise PipelineError(f"the brokers at {options.bootstrap}: {type(error).__name__}: {error}") from error
    finally:
        await client.close()


async def commit_micro_batch(
    client: TransactionClient,
    group: str,
    batch_id: int,
    prepared: Sequence[PreparedTransaction],
    places: Iterable[tuple[str, int]],
    *,
    is_decided: bool,
) -> None:
    """Commit a micro-batch, or continue with it where its tasks found it decided. Raises DataLoss, PipelineError."""
    decision = await client.decided(group)
    if is_decided:
        if decision is None or decision.batch_id != batch_id or not decision.transactions:
            raise PipelineError(f"micro-batch {batch_id}: another query with this checkpoint writes at the same time")
    else:
        if decision is not None and (
            decision.batch_id > batch_id or (decision.batch_id == batch_id and decision.transactions)
        ):
            raise PipelineError(f"micro-batch {batch_id}: another query with this checkpoint writes at the same time")
        decision = Decision(batch_id, tuple(prepared), tuple(sorted(places)))
        await client.decide(group, decision)
    ended = await client.end_all(decision.transactions, is_commit=True)
    if all(ended):
        await client.abort_earlier(decision.transactions)
        return
    if not any(ended):
        await client.decide(group, Decision(batch_id, (), decision.places))
        raise PipelineError(
            f"micro-batch {batch_id}: its transactions timed out before they were committed (transaction.timeout.ms):"
            " start the query again, it writes them again"
        )
    raise DataLoss(
        f"micro-batch {batch_id}: {ended.count(False)} of {len(ended)} transactions timed out before they were"
        " committed (transaction.timeout.ms): their records are missing"
    )


def _earlier_attempts(one: PreparedTransaction) -> list[str]:
    """The transactional ids of the attempts of a task before the one that wrote a transaction."""
    task, _, attempt = one.transactional_id.rpartition("-")
    return [f"{task}-{earlier}" for earlier in range(int(attempt))]


def _chunks(transactions: Iterable[PreparedTransaction], group: str) -> list[str]:
    """A line for each; a space stands for the group's name, with which their ids begin: some 200 fit into a chunk."""
    chunks: list[str] = []
    for one in transactions:
        name = one.transactional_id
        named = f" {name.removeprefix(group)}" if name.startswith(group) else name
        text = f"{named} {one.producer_id} {one.producer_epoch}\n"
        if not chunks or len(chunks[-1]) + len(text) > METADATA_MAX:
            chunks.append("")
        chunks[-1] += text
    return chunks


def _decoded(text: str, group: str) -> tuple[PreparedTransaction, ...]:
    rows = [line.rsplit(" ", 2) for line in text.splitlines()]
    return tuple(
        PreparedTransaction(group + name[1:] if name.startswith(" ") else name, int(producer_id), int(epoch))
        for name, producer_id, epoch in rows
    )
