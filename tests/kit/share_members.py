"""Members of a share group, by `tidegate.share`, which note deliveries and acknowledgements in a history."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kio.schema.errors import ErrorCode

from tests.kit.history import Acknowledgement, Delivery, Outcome, now_ns
from tests.kit.wire import RawClient, request
from tests.kit.writers import Session
from tidegate.share import ShareConsumer, ShareError, ShareRecord

CONFIGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "25",  # more than a run can take
    "share.record.lock.duration.ms": "15000",
}
_DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
_RELEASED: Final = 0.05
"""Of the records at their first two deliveries."""
_LEAVE_S: Final = 90.0
_REFUSED: Final = {ErrorCode.invalid_record_state: Outcome.FAILED, ErrorCode.invalid_request: Outcome.FAILED}
"""Other codes may be of what is stored and not confirmed (`docs/durability.md`)."""


def configure(admin: AdminClient, group: str) -> None:
    """Before its first member joins."""
    entries = [ConfigEntry(name, one, incremental_operation=AlterConfigOpType.SET) for name, one in CONFIGS.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(30)


async def start_offsets(session: Session, group: str) -> Mapping[str, int]:
    """Partition -> below which everything is finished; empty where that is not to be had now."""
    topics = [{"topic_name": session.topic, "partitions": tuple(range(session.partition_count))}]
    asked = request(_DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[{"group_id": group, "topics": topics}])
    try:
        async with await RawClient.connect(session.bootstrap.partition(",")[0]) as client:
            (found,) = (await client.ask(asked)).groups
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return {}
    if found.error_code is not ErrorCode.none:
        return {}
    return {session.partition(one.partition_index): one.start_offset for one in found.topics[0].partitions}


class ShareMember:
    """Accepts records, and releases a few; what it may not do is refused, and what it cannot do is unknown."""

    def __init__(self, session: Session, name: str, group: str, rng: random.Random) -> None:
        self.session, self.name, self.group, self._rng = session, name, group, rng

    def start(self) -> None:
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Releases what it has, and leaves the group."""
        self._over.set()
        if not (await asyncio.wait({self._task}, timeout=_LEAVE_S))[0]:
            self.session.fatal.append(f"{self.name}: has not ended after {_LEAVE_S:.0f} s")
            self._task.cancel()
        for error in await asyncio.gather(self._task, return_exceptions=True):
            if isinstance(error, Exception):
                self.session.fatal.append(f"{self.name}: {error!r}")

    async def _run(self) -> None:
        while not self._over.is_set():
            try:
                async with ShareConsumer(
                    self.session.bootstrap, group=self.group, topics=[self.session.topic], client_id=self.name
                ) as consumer:
                    while not self._over.is_set():
                        await self._take(consumer)
            except ShareError as error:
                self.session.resets.append(f"{now_ns()} {self.name} starts over: {error!r}")
                await asyncio.sleep(0.2)

    async def _take(self, consumer: ShareConsumer) -> None:
        """One poll, acknowledged as a whole."""
        delivered: dict[int, list[ShareRecord]] = defaultdict(list)
        for record in await consumer.poll(1.0):
            delivered[record.partition].append(record)
        decided = {index: self._decide(consumer, index, records) for index, records in delivered.items()}
        if decided:
            await self._commit(consumer, decided)

    def _decide(
        self, consumer: ShareConsumer, index: int, records: list[ShareRecord]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The offsets that are accepted, and those that are released."""
        shown = tuple((one.offset, (one.value or b"").decode(), one.delivery_count) for one in records)
        self.session.history.add(Delivery(self.name, now_ns(), self.group, self.session.partition(index), shown))
        released = [one for one in records if one.delivery_count < 3 and self._rng.random() < _RELEASED]
        accepted = [one for one in records if one not in released]
        consumer.accept(*accepted)
        consumer.release(*released)
        return tuple(one.offset for one in accepted), tuple(one.offset for one in released)

    async def _commit(
        self, consumer: ShareConsumer, decided: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
    ) -> None:
        began, outcome, refused = now_ns(), Outcome.UNKNOWN, {}
        try:
            refused = {(one.partition, offset): one.code for one in await consumer.commit() for offset in one.offsets}
            outcome = Outcome.OK
        except ShareError as error:
            self.session.resets.append(f"{now_ns()} {self.name}: {error!r}")
        for index, (accepted, released) in decided.items():
            ours = {(index, offset) for offset in (*accepted, *released)}  # others went with a fetch: gaps
            code = next((code for where, code in refused.items() if where in ours), ErrorCode.none)
            answered = outcome if code is ErrorCode.none else _REFUSED.get(code, Outcome.UNKNOWN)
            where = self.group, self.session.partition(index), accepted, released
            self.session.history.add(Acknowledgement(self.name, began, now_ns(), *where, answered))
