"""Where a share group begins to read a partition: `share.auto.offset.reset`, resolved when it is first assigned."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol
from uuid import UUID

import structlog

from tidegate.errors import CoordinatorLoadInProgress, InvalidConfig, KafkaError, StoreUnavailable
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

INITIALIZE_PARTITIONS = Script("share/initialize_partitions")

RESET_CONFIG: Final = "share.auto.offset.reset"
LATEST: Final = "latest"
EARLIEST: Final = "earliest"
BY_DURATION: Final = "by_duration:"
_PARTITIONS_AT_ONCE: Final = 100

logger = structlog.get_logger()

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


class Offsets(Protocol):
    """The offsets of a log."""

    @property
    def high_watermark(self) -> int:
        """The end of what may be read."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is stored."""


class Log(Protocol):
    """The log of a partition, as far as a start offset needs it."""

    async def latest(self) -> Offsets:
        """The offsets after a refresh, once the high watermark is known."""

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after the time."""


FindLog = Callable[[str, UUID, int], Log | None]
"""The log of a partition by organisation, topic id and index; None if there is no such topic."""


def parse_duration(text: str) -> timedelta:
    """An ISO-8601 duration of days and smaller units, as Java's Duration reads it. Raises InvalidConfig."""
    match = _DURATION.fullmatch(text)
    units = {} if match is None else {unit: float(value) for unit, value in match.groupdict().items() if value}
    if not units:
        raise InvalidConfig(f"{text!r} is not an ISO-8601 duration such as PT1H")
    try:
        return timedelta(**units)
    except OverflowError:
        raise InvalidConfig(f"{text!r} is too long") from None


def check_reset(policy: str) -> None:
    """Check a value of `share.auto.offset.reset`. Raises InvalidConfig."""
    if policy.startswith(BY_DURATION):
        parse_duration(policy.removeprefix(BY_DURATION))
    elif policy not in (LATEST, EARLIEST):
        raise InvalidConfig(f"{RESET_CONFIG} is latest, earliest or by_duration:<ISO-8601 duration>, not {policy!r}")


class StartOffsets:
    """Initialises share-partitions. `find_log` finds the logs whose offsets are asked."""

    def __init__(self, store: Store, find_log: FindLog) -> None:
        self._store, self._find_log = store, find_log

    async def initialise(
        self, keys: GroupKeys, before: Mapping[str, tuple[str, int]], after: Mapping[str, tuple[str, int]]
    ) -> None:
        """Initialise the partitions in `after` that are not in `before` (name -> topic id in hex, partition count).

        Partitions that a topic gained since the group began to read it begin at their first record, so that none is
        missed, also those that it gained while the group had no members. Raises StoreUnavailable,
        CoordinatorLoadInProgress if an offset is not known yet.
        """
        if before == after:
            return
        for name, topic in after.items():
            if before.get(name) != topic:
                await self._initialise_topic(keys, name, *topic)

    async def is_read(self, keys: GroupKeys, topic_id: str, count: int) -> bool:
        """Whether the group has initialised a partition of the topic. Raises StoreUnavailable."""
        return bool(await self._initialised(keys, topic_id, count))

    async def initialise_others(self, keys: GroupKeys, name: str, topic_id: str, count: int) -> None:
        """Initialise the other partitions of a topic that the group begins to read at altered offsets.

        They begin as at a first assignment; those that the topic gains later, at their first record. Raises as
        `initialise`.
        """
        found = await self._initialised(keys, topic_id, count)
        missing = [index for index in range(count) if index not in found]
        await self._initialise(keys, name, topic_id, missing, await self._policy(keys))

    async def _initialise_topic(self, keys: GroupKeys, name: str, topic_id: str, count: int) -> None:
        found = await self._initialised(keys, topic_id, count)
        if len(found) == count:
            return
        # Of an initialisation that was interrupted the last partitions exist: those below them are not new.
        grown_from = min(found, default=count)
        for indexes, rule in (
            (range(grown_from, count), EARLIEST),
            (range(grown_from), await self._policy(keys)),
        ):
            await self._initialise(keys, name, topic_id, [index for index in indexes if index not in found], rule)

    async def _initialised(self, keys: GroupKeys, topic_id: str, count: int) -> set[int]:
        """The partitions of a topic that the group has initialised."""
        found: set[int] = set()
        for first in range(0, count, _PARTITIONS_AT_ONCE):
            part = range(first, min(first + _PARTITIONS_AT_ONCE, count))
            names = await self._store.command("HMGET", keys.shares, *(f"{topic_id}:{index}" for index in part))
            found.update(index for index, topic in zip(part, names, strict=True) if topic is not None)
        return found

    async def _policy(self, keys: GroupKeys) -> str:
        policy: bytes | None = await self._store.command("HGET", keys.configs, RESET_CONFIG)
        return LATEST if policy is None else policy.decode()

    async def restore(self, keys: GroupKeys, topic_id: str, index: int) -> bool:
        """Initialise a partition of the group whose state Redis has lost; False if the group does not have it.

        It begins at the first record, so that none is missed; what the group had finished is delivered again. Raises
        as `initialise`.
        """
        name = await self._store.command("HGET", keys.shares, f"{topic_id}:{index}")
        if name is None:
            return False
        logger.error("share_partition_restored", group=keys.ref, topic=name.decode(), partition=index)
        await self._initialise(keys, name.decode(), topic_id, [index], EARLIEST)
        return True

    async def _initialise(self, keys: GroupKeys, name: str, topic_id: str, indexes: Sequence[int], policy: str) -> None:
        """Initialise partitions once the offsets of all are known, the last ones first."""
        parts = [indexes[at : at + _PARTITIONS_AT_ONCE] for at in range(0, len(indexes), _PARTITIONS_AT_ONCE)]
        offsets = [await self._offsets(keys, name, topic_id, part, policy) for part in parts]
        for part, begins in zip(reversed(parts), reversed(offsets), strict=True):
            key_names, args = [keys.shares], [name]
            for index, offset in zip(part, begins, strict=True):
                if offset is not None:
                    key_names += keys.share(topic_id, index)
                    args += (f"{topic_id}:{index}", str(offset))
            await self._store.run(INITIALIZE_PARTITIONS, key_names, *args)

    async def _offsets(
        self, keys: GroupKeys, name: str, topic_id: str, indexes: Sequence[int], policy: str
    ) -> list[int | None]:
        try:
            return await asyncio.gather(*(self._offset(keys.org, topic_id, index, policy) for index in indexes))
        except StoreUnavailable:
            raise
        except KafkaError as error:
            raise CoordinatorLoadInProgress(f"the offsets of {name} are not known yet: {error.message}") from error

    async def _offset(self, org: str, topic_id: str, index: int, policy: str) -> int | None:
        """The start offset of a partition; None if its topic was deleted."""
        log = self._find_log(org, UUID(hex=topic_id), index)
        if log is None:
            return None
        offsets = await log.latest()
        if policy == EARLIEST:
            return offsets.log_start_offset
        if policy.startswith(BY_DURATION):
            since = parse_duration(policy.removeprefix(BY_DURATION)) / timedelta(milliseconds=1)
            found = await log.offset_for_timestamp(max(self._store.clock.now_ms() - int(since), 0))
            return offsets.high_watermark if found is None else found[0]
        return offsets.high_watermark
