"""Members of share groups as client libraries have them: heartbeat, fetch, accept or release, hang, leave.

What a member says of its records is noted before it is sent: from then on the next record of the key may be delivered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.history import Acknowledgement, Delivery, Outcome
from tests.kit.wire import request
from tests.simulation.wire import Disconnected, Wire
from tidegate.records.batch import iter_headers
from tidegate.records.record import read_records

if TYPE_CHECKING:
    from tests.simulation.share_traffic import ShareGroupHistory, ShareTraffic

HEARTBEAT, FETCH, ACKNOWLEDGE = 76, 78, 79
LOCK_S: Final = 5.0
HEARTBEAT_EVERY_S: Final = 3.0
FETCH_WAIT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 4.0
_GAP, _ACCEPT, _RELEASE = 0, 1, 2
_RELEASED_SHARE: Final = 0.15
_LONG_SHARE: Final = 0.04
"""Of the deliveries, those that take longer than the lock."""
_BACK_OFF_S: Final = (1 / 16, 1 / 8, 1 / 4)
_NO_SESSION: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})
_NOT_A_MEMBER: Final = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found}
)
_RETRIED: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_leader_or_follower,
    }
)
_REFUSED: Final = frozenset({ErrorCode.invalid_record_state, ErrorCode.invalid_request})


@dataclass(frozen=True, slots=True)
class SharedRecord:
    """A record as it was delivered."""

    partition: int
    offset: int
    key: str
    value: str | None
    """None of an offset without a record, which clients acknowledge as a gap."""
    count: int


class ShareMember:
    """One member process, from start to end."""

    def __init__(self, traffic: ShareTraffic, group: ShareGroupHistory, name: str, rng: random.Random) -> None:
        self.traffic, self.group, self.name, self.rng = traffic, group, name, rng
        self.loop = traffic.world.loop
        self.epoch, self.session = 0, 0
        self.assigned: tuple[int, ...] = ()
        self.is_gone = False
        self._heartbeat_due_s = 0.0
        self._wire: Wire | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                if self._wire is None or not self._wire.open:
                    self.session = 0
                    self._wire = Wire(self.traffic.world.net, self.rng.choice(self.traffic.world.ports), lambda: None)
                    await self._wire.ready()
                if self.loop.now >= self._heartbeat_due_s:
                    await self._heartbeat()
                if self.assigned and (records := await self._fetch()):
                    await self._work(records)
                elif not self.assigned:
                    await asyncio.sleep(1)
            except Disconnected:
                await asyncio.sleep(self.rng.choice(_BACK_OFF_S))

    async def leave(self) -> None:
        """Close the session and leave; a failure is not retried."""
        self.is_gone = True
        try:
            if self._wire is not None and self._wire.open and self.epoch > 0:
                if self.session:
                    await self._ask(self._fetch_request(-1))
                await self._ask(self._heartbeat_request(-1))
        except Disconnected:
            pass
        finally:
            self.crash()

    def crash(self) -> None:
        """The process ends."""
        self.is_gone = True
        if self._wire is not None:
            self._wire.close()

    async def _ask(self, request: Any) -> Any:
        assert self._wire is not None
        return await self._wire.ask(request, self.name, REQUEST_TIMEOUT_S)

    # -- heartbeats

    def _heartbeat_request(self, epoch: int) -> Any:
        names = (self.traffic.topic,) if epoch == 0 else None
        identity = {"group_id": self.group.group_id, "member_id": self.name}
        return request(HEARTBEAT, 1, **identity, member_epoch=epoch, subscribed_topic_names=names)

    async def _heartbeat(self) -> None:
        answer = await self._ask(self._heartbeat_request(self.epoch))
        code = answer.error_code
        if code is ErrorCode.none:
            self.epoch, self._heartbeat_due_s = answer.member_epoch, self.loop.now + HEARTBEAT_EVERY_S
            if answer.assignment is not None:
                given = sorted(index for one in answer.assignment.topic_partitions for index in one.partitions)
                if tuple(given) != self.assigned:
                    self.assigned, self.session = tuple(given), 0
        elif code in _NOT_A_MEMBER:
            self.epoch = 0
        else:
            self._retry(code)

    def _retry(self, code: ErrorCode) -> None:
        """Raises Disconnected, Violation."""
        if code not in _RETRIED:
            raise self.group.broken("P7", f"{self.name} was answered {code.name}")
        assert self._wire is not None
        self._wire.close()
        raise Disconnected

    # -- records

    def _fetch_request(self, epoch: int) -> Any:
        partitions = [
            {"partition_index": index, "acknowledgement_batches": ()} for index in (self.assigned if epoch == 0 else ())
        ]
        topics = [{"topic_id": self.traffic.topic_id, "partitions": partitions}] if partitions else []
        return request(
            FETCH, 1, group_id=self.group.group_id, member_id=self.name, share_session_epoch=epoch,
            max_wait=1_000 * FETCH_WAIT_S, min_bytes=1, max_bytes=1 << 20, max_records=self.rng.choice((1, 5, 50)),
            batch_size=50, topics=topics, forgotten_topics_data=(),
        )  # fmt: skip

    async def _fetch(self) -> list[SharedRecord]:
        answer = await self._ask(self._fetch_request(self.session))
        if answer.error_code in _NO_SESSION:
            self.session = 0
            return []
        if answer.error_code is not ErrorCode.none:
            self._retry(answer.error_code)
        self.session += 1
        records: list[SharedRecord] = []
        for one in (partition for found in answer.responses for partition in found.partitions):
            if one.error_code is not ErrorCode.none:
                self._retry(one.error_code)
            records += _acquired(one)
        for index in sorted({one.partition for one in records}):
            mine = tuple(
                (one.offset, one.value, one.count)
                for one in records
                if one.partition == index and one.value is not None
            )
            at = self.traffic.now_ns()
            self.group.history.add(Delivery(self.name, at, self.group.group_id, self.traffic.partition(index), mine))
        for record in records:
            if record.value is not None:
                self.group.deliver(record, self.name)
        return records

    async def _work(self, records: list[SharedRecord]) -> None:
        """Take some time, then say what became of them."""
        calm = not self.traffic.world.calm_over.done()
        takes_long = not calm and self.rng.random() < _LONG_SHARE
        await asyncio.sleep(self.rng.uniform(LOCK_S, 2 * LOCK_S) if takes_long else self.rng.uniform(0, 0.5))
        for index in sorted({one.partition for one in records}):
            some = [one for one in records if one.partition == index]
            types = {one.offset: _RELEASE if self.rng.random() < _RELEASED_SHARE else _ACCEPT for one in some}
            types |= {one.offset: _GAP for one in some if one.value is None}
            await self._acknowledge(index, types, {one.offset: one.count for one in some})

    async def _acknowledge(self, index: int, types: Mapping[int, int], counts: Mapping[int, int]) -> None:
        accepted = tuple(offset for offset, kind in sorted(types.items()) if kind == _ACCEPT)
        released = tuple(offset for offset, kind in sorted(types.items()) if kind == _RELEASE)
        accepting = self.group.accepting
        for offset in accepted:
            accepting[index, offset] = max(counts[offset], accepting.get((index, offset), 0))
        batches = [
            {"first_offset": offset, "last_offset": offset, "acknowledge_types": (kind,)}
            for offset, kind in sorted(types.items())
        ]
        partition = {"partition_index": index, "acknowledgement_batches": batches}
        asked = request(
            ACKNOWLEDGE, 1, group_id=self.group.group_id, member_id=self.name, share_session_epoch=self.session,
            topics=[{"topic_id": self.traffic.topic_id, "partitions": [partition]}],
        )  # fmt: skip
        began, outcome = self.traffic.now_ns(), Outcome.UNKNOWN
        try:
            answer = await self._ask(asked)
            outcome = self._outcome(answer)
        finally:
            at, group = self.traffic.now_ns(), self.group
            group.note(f"{self.name}: {index}: {dict(types)}: {outcome}")
            where = (group.group_id, self.traffic.partition(index))
            # who accepts what another member has accepted since, after a later delivery, is answered without an error
            accepted = tuple(offset for offset in accepted if accepting[index, offset] <= counts[offset])
            group.history.add(Acknowledgement(self.name, began, at, *where, accepted, released, outcome))

    def _outcome(self, answer: Any) -> Outcome:
        code = answer.error_code
        if code is ErrorCode.none:
            self.session += 1
            code = answer.responses[0].partitions[0].error_code
        elif code in _NO_SESSION:
            self.session = 0
            return Outcome.FAILED
        if code is ErrorCode.none:
            return Outcome.OK
        return Outcome.FAILED if code in _REFUSED else Outcome.UNKNOWN


def _acquired(partition: Any) -> list[SharedRecord]:
    """The acquired records among those that were sent."""
    counts = {
        offset: one.delivery_count
        for one in partition.acquired_records
        for offset in range(one.first_offset, one.last_offset + 1)
    }
    sent = {
        record.offset: tuple(bytes(part or b"").decode() for part in (record.key, record.value))
        for batch in iter_headers(bytes(partition.records or b""))
        for record in read_records(batch)
    }
    index = partition.partition_index
    return [SharedRecord(index, offset, *sent.get(offset, ("", None)), count) for offset, count in counts.items()]
