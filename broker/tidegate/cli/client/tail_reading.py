"""Reads a topic from given offsets to its end or indefinitely, from the partition leaders; survives broker changes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from time import time
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.kafka_client import EARLIEST, LATEST, KafkaClient, TopicLeaders
from tidegate.cli.client.kafka_wire import request
from tidegate.cli.client.last_records import FetchedOffsets, offset_of_last
from tidegate.cli.client.topic_requests import described
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import Brokers
from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.groups.reset_plan import InvalidReset, parse_datetime, parse_duration
from tidegate.protocol.api_keys import ApiKey
from tidegate.records.batch import iter_headers
from tidegate.records.record import Record, read_records

CLIENT_ID: Final = "tidegate-tail"
_WAIT: Final = timedelta(milliseconds=250)
_BYTES_MAX: Final = 8 << 20
_PARTITION_BYTES_MAX: Final = 1 << 20
_TRIES: Final = 30
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """A record and its partition."""

    partition: int
    record: Record


@dataclass(slots=True)
class Tail:
    """What to read.

    `start` is `earliest`, `latest`, an offset, -N for the last N records of each partition, or a time:
    `2026-01-31T18:00:00`, or a duration ago, `PT1H`.
    """

    brokers: Brokers
    topic: str
    start: str
    partitions: frozenset[int]
    follow: bool
    notes: list[str] = field(default_factory=list)
    """Messages for the user, besides the records."""
    _next: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    async def records(self) -> AsyncGenerator[Found, None]:
        """Raises CommandFailed, also when no broker has answered for 30 s."""
        failures = 0
        while True:
            try:
                async with KafkaClient(self.brokers, CLIENT_ID) as kafka:
                    await self._begin(kafka)
                    async for found in self._read(kafka):
                        failures = 0
                        yield found
                    return
            except CommandFailed:
                failures += 1
                if not self._next or failures >= _TRIES:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _begin(self, kafka: KafkaClient) -> None:
        topic = await described(kafka, self.topic)
        if self._next:
            return  # retry after a broker was lost
        if unknown := sorted(self.partitions - topic.leaders.keys()):
            raise CommandFailed(f"{self.topic} has no partition {unknown[0]}")
        chosen = sorted(self.partitions or topic.leaders)
        self._ends = await self._at(kafka, topic, chosen, LATEST)
        self._next = await self._starts(kafka, topic, chosen)

    async def _starts(self, kafka: KafkaClient, topic: TopicLeaders, chosen: Iterable[int]) -> dict[int, int]:
        if self.start == "latest":
            return dict(self._ends)
        earliest = await self._at(kafka, topic, chosen, EARLIEST)
        if self.start == "earliest":
            return earliest
        try:
            number = int(self.start)
        except ValueError:
            moment = moment_of(self.start, time())
            found = await self._at(kafka, topic, chosen, moment)
            return {index: offset if offset >= 0 else self._ends[index] for index, offset in found.items()}
        if number >= 0:
            return {index: min(max(number, earliest[index]), self._ends[index]) for index in chosen}
        lasts = (self._last(kafka, topic.leaders[index], index, -number, earliest[index]) for index in chosen)
        return dict(zip(chosen, await asyncio.gather(*lasts), strict=True))

    async def _last(self, kafka: KafkaClient, leader: int, index: int, count: int, earliest: int) -> int:
        """The offset of the `count`th last record of a partition."""

        async def read(offset: int) -> FetchedOffsets:
            ((_, records, following, size),) = await self._fetch(kafka, leader, {index: offset})
            return FetchedOffsets([one.offset for one in records], following, size)

        return await offset_of_last(count, earliest, self._ends[index], read)

    async def _at(self, kafka: KafkaClient, topic: TopicLeaders, chosen: Iterable[int], moment: int) -> dict[int, int]:
        wanted = {(topic.name, index): moment for index in chosen}
        return {index: offset for (_, index), offset in (await kafka.offsets_at(wanted, {topic.name: topic})).items()}

    async def _read(self, kafka: KafkaClient) -> AsyncGenerator[Found, None]:
        while open_ := [i for i, offset in self._next.items() if self.follow or offset < self._ends[i]]:
            leaders = (await kafka.topics([self.topic]))[self.topic].leaders
            by_leader: dict[int, dict[int, int]] = defaultdict(dict)
            for index in open_:
                by_leader[leaders[index]][index] = self._next[index]
            answers = await asyncio.gather(*(self._fetch(kafka, *each) for each in by_leader.items()))
            found = []
            for index, records, following, _ in chain(*answers):  # no offset has advanced if one of them failed
                self._next[index] = following
                found += [Found(index, one) for one in records]
            for one in sorted(found, key=lambda one: one.record.timestamp):
                if self.follow or one.record.offset < self._ends[one.partition]:
                    yield one

    async def _fetch(
        self, kafka: KafkaClient, leader: int, offsets: Mapping[int, int]
    ) -> list[tuple[int, list[Record], int, int]]:
        """Partition, records from its offset on, next offset, bytes."""
        answer = await kafka.ask_broker(leader, ApiKey.FETCH, **self._request(offsets))
        return [self._of_partition(one, offsets) for topic in answer.responses for one in topic.partitions]

    def _of_partition(self, answer: Any, offsets: Mapping[int, int]) -> tuple[int, list[Record], int, int]:
        index = int(answer.partition_index)
        offset = offsets[index]
        if answer.error_code is ErrorCode.offset_out_of_range:  # retention deleted them meanwhile
            start = max(int(answer.log_start_offset), offset + 1)
            self.notes.append(f"{self.topic} {index}: offsets {offset} to {start - 1} are gone (retention)")
            return index, [], start, 0
        if answer.error_code is not ErrorCode.none:
            raise CommandFailed(f"{self.topic} {index}: {answer.error_code.name.upper()}")
        data = bytes(answer.records or b"")
        return index, *self._opened(index, offset, data), len(data)

    def _opened(self, index: int, offset: int, data: bytes) -> tuple[list[Record], int]:
        found: list[Record] = []
        following = offset
        try:
            for batch in iter_headers(data):
                if not batch.is_control:
                    found += [one for one in read_records(batch) if one.offset >= offset]
                following = max(following, batch.next_offset)
        except (InvalidRecord, CorruptMessage) as error:
            if following == offset:  # otherwise the last batch is truncated, which Kafka permits
                raise CommandFailed(f"{self.topic} {index} at {offset}: {error}") from None
        return found, following

    def _request(self, offsets: Mapping[int, int]) -> Mapping[str, Any]:
        module = request(ApiKey.FETCH)
        parts = tuple(
            module.FetchPartition(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=_PARTITION_BYTES_MAX,
            )
            for index, offset in offsets.items()
        )
        return {
            "cluster_id": None,
            "replica_id": -1,
            "max_wait": _WAIT if self.follow else timedelta(0),
            "min_bytes": 1,
            "max_bytes": _BYTES_MAX,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": (module.FetchTopic(topic=self.topic, partitions=parts),),
            "forgotten_topics_data": (),
            "rack_id": "",
        }


def moment_of(text: str, now_s: float) -> int:
    """Ms since 1970 of a time, or of a duration ago. Raises CommandFailed."""
    try:
        if text[:1].upper() == "P":
            return max(int((now_s - parse_duration(text.upper(), "--from").total_seconds()) * 1000), 0)
        return max(parse_datetime(text, "--from"), 0)
    except InvalidReset:
        raise CommandFailed(
            f"--from {text}: not earliest, latest, an offset, -N, a time (2026-01-31T18:00:00) or a duration (PT1H)"
        ) from None
