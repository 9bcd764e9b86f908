"""Write what failed for good in a share group to the topic that the group's config names (KIP-1191).

The script that ends the last delivery of a record queues it, so no broker's end loses it. The queue has a deadline in
the index of its shard; the broker that takes the deadline appends the records, then removes them from the queue. A
broker that ends in between leaves records that the next one appends again, which the KIP permits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from tidegate.errors import KafkaError, OffsetOutOfRange, StoreUnavailable, TopicAlreadyExists
from tidegate.groups.share.dead_records import DeadLetter, SourceRecord, batches_of, source_records
from tidegate.groups.share.starting import Offsets
from tidegate.records.batch import Batch, iter_headers
from tidegate.settings import Settings
from tidegate.store.calls import result_of
from tidegate.store.foreign_entries import StreamEntry
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.topics import names
from tidegate.topics.catalog import Catalog
from tidegate.topics.config_keys import TAKES_DEAD_LETTERS
from tidegate.topics.model import Topic

TAKE_DEAD_LETTERS = Script("share/take_dead_letters")
REMOVE_DEAD_LETTERS = Script("share/remove_dead_letters")

HOLD_MS: Final = 10_000
"""How long no other broker takes a queue while this one appends what it read."""
_CREATED_PREFIX: Final = "dlq."
"""Only topics with this prefix are created (KIP-1191's default), so that no group config creates any other topic."""
_LETTERS_AT_ONCE: Final = 20
_READ_BYTES: Final = 1 << 20
_INLINE_BYTES_MAX: Final = 1 << 15
"""Batches above this size together are opened in a thread."""

logger = structlog.get_logger()


class Log(Protocol):
    """The log of a partition, as far as dead letters need it."""

    async def latest(self) -> Offsets:
        """The offsets after a refresh."""

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: Callable[[Any], None]) -> None:
        """Call back with whole batches from the one that contains `offset`, or with the error."""

    def append(self, batch: Batch, on_done: Callable[[Any], None]) -> None:
        """Append a batch; call back with its offset, or with the error."""


@dataclass(frozen=True, slots=True)
class LetterOutcome:
    """What became of a queue's entry; `refusal` says why records were dropped."""

    written: int = 0
    dropped: int = 0
    refusal: str = ""


class Refused(Exception):
    """The topic takes no dead letters: they are dropped, as in Kafka."""


def refusal_of(topic: Topic | None, name: str) -> str:
    """Why a topic takes no dead letters; "" if it does."""
    if topic is None:
        return f"there is no topic {name}"
    return "" if topic.config.takes_dead_letters else f"{TAKES_DEAD_LETTERS} is not true for the topic {name}"


class DeadLetters:
    """Writes the dead letters of the queues whose deadlines this broker takes."""

    def __init__(self, store: Store, settings: Settings, catalog: Catalog, log_of: Callable[[Topic, int], Log]) -> None:
        self._store, self._settings, self._catalog, self._log_of = store, settings, catalog, log_of
        self._draining: set[str] = set()
        self._tasks = TaskSet()

    @property
    def is_busy(self) -> bool:
        """Whether a queue is being written."""
        return bool(len(self._tasks))

    async def close(self) -> None:
        """Stop; what is not removed yet is written by another broker."""
        await self._tasks.close()

    async def expire(self, keys: GroupKeys) -> None:
        """The queue's deadline has passed: begin to write. Other deadlines do not wait for it."""
        if keys.group not in self._draining:
            self._tasks.start(self._drain_once(keys), name="dead-letters")

    async def _drain_once(self, keys: GroupKeys) -> None:
        self._draining.add(keys.group)
        try:
            await self.drain(keys)
        except StoreUnavailable as error:
            logger.warning("dead_letters_not_written", group=keys.ref, reason=str(error))
        finally:
            self._draining.discard(keys.group)

    async def drain(self, keys: GroupKeys) -> None:
        """Write the whole queue; what cannot be written now is left for the next time. Raises StoreUnavailable.

        A foreign entry is left out, and stays: another version of the broker may have written it.
        """
        after = "-"
        while entries := await self._take(keys, after):
            letters = self._store.foreign_entries.leave_out(keys.dead_letters, entries, DeadLetter.of)
            outcomes = await asyncio.gather(*(self._write(keys, letter) for letter in letters))
            await self._remove(keys, list(zip(letters, outcomes, strict=True)))
            after = f"({entries[-1][0].decode()}"

    # -- the queue

    async def _take(self, keys: GroupKeys, after: str) -> list[StreamEntry]:
        names_of = [keys.dead_letters, keys.shard_keys.deadlines]
        return await self._store.run(TAKE_DEAD_LETTERS, names_of, keys.ref, after, _LETTERS_AT_ONCE, HOLD_MS)

    async def _remove(self, keys: GroupKeys, outcomes: Sequence[tuple[DeadLetter, LetterOutcome | KafkaError]]) -> None:
        key_names, args = [keys.dead_letters], list[Arg]()
        dropped: dict[str, int] = {}
        for letter, outcome in outcomes:
            if isinstance(outcome, LetterOutcome):
                partition = letter.partition
                key_names.append(keys.share(partition.topic_id.hex, partition.index)[0])
                args += (letter.entry_id, outcome.written, outcome.dropped)
                if outcome.dropped:
                    dropped[outcome.refusal] = dropped.get(outcome.refusal, 0) + outcome.dropped
        if args:
            await self._store.run(REMOVE_DEAD_LETTERS, key_names, *args)
        for refusal, count in dropped.items():
            logger.warning("dead_letters_dropped", group=keys.ref, records=count, reason=refusal)
        failed = next((outcome for _, outcome in outcomes if isinstance(outcome, KafkaError)), None)
        if failed is not None:
            logger.warning("dead_letters_not_written", group=keys.ref, reason=failed.message or failed.code.name)

    # -- writing

    async def _write(self, keys: GroupKeys, letter: DeadLetter) -> LetterOutcome | KafkaError:
        """Append the records of one entry; a KafkaError if it is to be tried again."""
        try:
            target = await self._target(keys.org, letter.target)
            log = self._log_of(target, letter.partition.index % target.partition_count)
            offered = written = 0
            async for sources in self._sources(keys.org, letter):
                now_ms = self._store.clock.now_ms()
                records = [letter.record(keys.group_id, offset, source, now_ms) for offset, source in sources]
                offered += len(records)
                for batch in batches_of(records, target.config):
                    await _appended(log, batch)
                    written += batch.record_count
        except Refused as refused:
            return LetterOutcome(dropped=letter.record_count, refusal=str(refused))
        except KafkaError as error:
            return error
        except Exception as error:  # the queue continues, and the entry is tried again
            logger.exception("dead_letter_failed", group=keys.ref, entry=letter.entry_id)
            return KafkaError(str(error))
        return LetterOutcome(written, offered - written, f"the topic {letter.target} does not take such records")

    async def _target(self, org: str, name: str) -> Topic:
        """The dead-letter topic, created if it may be. Raises Refused, KafkaError."""
        topic = await self._catalog.find(org, name)
        if topic is None and self._may_create(name):
            try:
                await self._catalog.check_new(org, name)
                topic = await self._catalog.create(org, name, None, {TAKES_DEAD_LETTERS: "true"})
            except TopicAlreadyExists:
                topic = await self._catalog.find(org, name)
        refusal = refusal_of(topic, name)
        if topic is None or refusal:
            raise Refused(refusal)
        return topic

    def _may_create(self, name: str) -> bool:
        is_named_so = name.startswith(_CREATED_PREFIX) and names.is_legal(name)
        return self._settings.errors_deadletterqueue_auto_create_topics_enable and is_named_so

    # -- reading

    async def _sources(self, org: str, letter: DeadLetter) -> AsyncIterator[Sequence[SourceRecord]]:
        """The records of an entry, some at a time; those that the log does not have any more are None."""
        topic = await self._catalog.find_by_id(org, letter.partition.topic_id)
        if topic is None or letter.partition.index >= topic.partition_count:
            yield _missing(range(letter.first, letter.last + 1))
            return
        log = self._log_of(topic, letter.partition.index)
        known = await log.latest()  # another broker may have delivered records that this one has not noticed
        offset = min(max(letter.first, known.log_start_offset), letter.last + 1)
        yield _missing(range(letter.first, offset))
        while offset <= letter.last:
            batches = await _batches_at(log, offset)
            if not batches:
                yield _missing(range(offset, letter.last + 1))
                return
            if letter.copies and sum(batch.size for batch in batches) > _INLINE_BYTES_MAX:
                yield await asyncio.to_thread(source_records, batches, offset, letter.last, True)
            else:
                yield source_records(batches, offset, letter.last, letter.copies)
            offset = batches[-1].next_offset


def _missing(offsets: Iterable[int]) -> list[SourceRecord]:
    return [(offset, None) for offset in offsets]


async def _batches_at(log: Log, offset: int) -> list[Batch]:
    """Batches from an offset on; none if the log has deleted them. Raises KafkaError."""
    try:
        read = await result_of(partial(log.read, offset, _READ_BYTES, True))
    except OffsetOutOfRange:
        return []
    return list(iter_headers(b"".join(read.buffers))) if read.size else []


async def _appended(log: Log, batch: Batch) -> None:
    """Raises KafkaError."""
    await result_of(partial(log.append, batch))
