"""Members of KIP-848 and streams groups as client libraries have them: heartbeat, give up, take over, commit, leave.

A member reports what it owns after each change, and everything after a lost answer. It believes to own its partitions
until it learns otherwise: after a pause it commits first, which the brokers must refuse if it was removed meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.history import Assigned, Commit, Outcome, Revoked
from tests.kit.wire import request
from tests.simulation.contact import Contact
from tests.simulation.members import TOPIC
from tests.simulation.wire import Disconnected, Wire

if TYPE_CHECKING:
    from tests.simulation.epoch_traffic import EpochGroupHistory, EpochTraffic

COMMIT, HEARTBEAT, STREAMS_HEARTBEAT = 8, 68, 88
INTERVAL_S: Final = 3.0
SESSION_S: Final = 12.0
REQUEST_TIMEOUT_S: Final = 2.5
REBALANCE_TIMEOUT_S: Final = 25.0
_BACK_OFF_S: Final = (1 / 16, 1 / 8, 1 / 4)
_RETRIED: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
    }
)
_NOT_A_MEMBER: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
_REFUSED: Final = _NOT_A_MEMBER | {ErrorCode.stale_member_epoch, ErrorCode.group_id_not_found}


class EpochMember:
    """One member process, from start to end."""

    def __init__(self, traffic: EpochTraffic, group: EpochGroupHistory, name: str, rng: random.Random) -> None:
        self.traffic, self.group, self.name, self.rng = traffic, group, name, rng
        self.loop = traffic.world.loop
        self.epoch, self.owned = 0, frozenset[int]()
        self.contact = Contact()
        self.is_gone = False
        self._ids = 0
        self.member_id = ""
        self._wire: Wire | None = None
        self._reports = False
        self._hangs_s = 0.0

    # -- life

    async def run(self) -> None:
        """Until it is cancelled."""
        self._next_id()
        while True:
            try:
                if self._wire is None or not self._wire.open:
                    await self._connect()
                if not await self._heartbeat():
                    await self._commit()
                    await asyncio.sleep(INTERVAL_S)
                    if self._hangs_s:
                        hangs_s, self._hangs_s = self._hangs_s, 0.0
                        await asyncio.sleep(hangs_s)
                        await self._commit()
            except Disconnected:
                self._reports = True
                await asyncio.sleep(self.rng.choice(_BACK_OFF_S))

    def hang(self, seconds: float) -> None:
        """Do nothing for a while after the next heartbeat."""
        self._hangs_s = seconds

    async def leave(self) -> None:
        """Leave as `close` does; a failure is not retried."""
        self._drop()
        self.is_gone = True
        try:
            if self._wire is not None and self._wire.open and self.epoch > 0:
                await self._ask(self._request(-1))
        except Disconnected:
            pass
        finally:
            self.crash()

    def crash(self) -> None:
        """The process ends: it owns nothing any more."""
        self._drop()
        self.is_gone = True
        if self._wire is not None:
            self._wire.close()

    def _next_id(self) -> None:
        """Who was removed comes back as another member."""
        self._ids += 1
        self.member_id = f"{self.name}.{self._ids}"
        self.group.members[self.member_id] = self
        self.epoch = 0

    # -- connections

    async def _connect(self) -> None:
        self._wire = Wire(self.traffic.world.net, self.rng.choice(self.traffic.world.ports), lambda: None)
        await self._wire.ready()

    async def _ask(self, request: Any) -> Any:
        assert self._wire is not None
        return await self._wire.ask(request, self.name, REQUEST_TIMEOUT_S)

    # -- heartbeats

    def _request(self, epoch: int) -> Any:
        is_full = epoch >= 0 and (epoch == 0 or self._reports)
        owned = [] if epoch == 0 else sorted(self.owned)
        parts = [{"topic_id": self.traffic.topic_id, "partitions": owned}] if owned else []
        return request(
            HEARTBEAT, 1, group_id=self.group.group_id, member_id=self.member_id, member_epoch=epoch,
            rebalance_timeout=1_000 * REBALANCE_TIMEOUT_S if is_full else -1,
            subscribed_topic_names=(TOPIC,) if is_full else None, topic_partitions=parts if is_full else None,
        )  # fmt: skip

    async def _heartbeat(self) -> bool:
        """One heartbeat; whether another one follows at once."""
        sent_s, asked_epoch = self.loop.now, self.epoch
        answer = await self._ask(self._request(self.epoch))
        code = answer.error_code
        if code is ErrorCode.none:
            assert self._wire is not None
            self.contact.answered(sent_s, self.loop.now, self._wire.port)
            self.epoch, self._reports = answer.member_epoch, False
            if self.epoch < asked_epoch:
                raise self.group.broken("P2", f"{self.name} was given epoch {self.epoch} after {asked_epoch}")
            given = self._given(answer)
            return given is not None and self._own(given)
        if code in _NOT_A_MEMBER:
            self._drop()
            self.epoch = 0
            if code is ErrorCode.unknown_member_id:
                self._next_id()
            return True
        if code in _RETRIED and self._wire is not None:
            self._wire.close()
            raise Disconnected
        raise self.group.broken("P7", f"{self.name} was answered {code.name}")

    def _given(self, answer: Any) -> frozenset[int] | None:
        """The partitions that an answer assigns; None without news."""
        if answer.assignment is None:
            return None
        return frozenset(index for one in answer.assignment.topic_partitions for index in one.partitions)

    def _own(self, given: frozenset[int]) -> bool:
        """Give up and take over; whether anything changed, which is reported at once."""
        before, self.owned = self.owned, given
        if before - given:
            self.group.history.add(
                Revoked(self.name, self.traffic.now_ns(), self.group.group_id, names(before - given))
            )
        if given - before:
            at, who = self.traffic.now_ns(), (self.group.group_id, self.member_id, self.epoch)
            self.group.history.add(Assigned(self.name, at, *who, names(given - before)))
            for index in given - before:
                self.group.owners[index] = (self.name, at)
        self._reports = given != before
        return self._reports

    def _drop(self) -> None:
        """It has learned that it owns nothing."""
        if self.owned:
            owned, self.owned = self.owned, frozenset()
            self.group.history.add(Revoked(self.name, self.traffic.now_ns(), self.group.group_id, names(owned)))

    # -- commits

    async def _commit(self) -> None:
        if not self.owned or self.epoch <= 0:
            return
        offset = self.group.next_offset()
        offsets = dict.fromkeys(sorted(self.owned), offset)
        partitions = [
            {"partition_index": index, "committed_offset": offset, "committed_metadata": ""} for index in offsets
        ]
        asked = request(
            COMMIT, 9, group_id=self.group.group_id, generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id, topics=[{"name": TOPIC, "partitions": partitions}],
        )  # fmt: skip
        began = self.traffic.now_ns()
        try:
            answer = await self._ask(asked)
        except (Disconnected, asyncio.CancelledError):  # the second one if the member crashes meanwhile
            self._note_commit(began, offsets, Outcome.UNKNOWN)
            raise
        codes = {one.error_code for topic in answer.topics for one in topic.partitions}
        outcome = Outcome.OK if codes == {ErrorCode.none} else Outcome.FAILED
        self._note_commit(began, offsets, outcome if codes <= _REFUSED | {ErrorCode.none} else Outcome.UNKNOWN)

    def _note_commit(self, began: int, offsets: dict[int, int], outcome: Outcome) -> None:
        named = {names((index,))[0]: offset for index, offset in offsets.items()}
        ended, group = self.traffic.now_ns(), self.group
        group.history.add(Commit(self.name, began, ended, group.group_id, -1, named, outcome))
        for index in offsets if outcome is Outcome.OK else ():
            owner, since = group.owners[index]
            if owner != self.name and since < began:
                raise group.broken(
                    "P3", f"{self.name} committed partition {index}, which {owner} owned since {since} ns"
                )


class StreamsThread(EpochMember):
    """A thread of an application of one subtopology, whose tasks are the partitions of the topic (KIP-1071)."""

    def _request(self, epoch: int) -> Any:
        is_full, joins = epoch >= 0 and (epoch == 0 or self._reports), epoch == 0
        owned = [] if joins else sorted(self.owned)
        subtopology = {
            "subtopology_id": "0", "source_topics": (TOPIC,), "source_topic_regex": (), "state_changelog_topics": (),
            "repartition_sink_topics": (), "repartition_source_topics": (), "copartition_groups": (),
        }  # fmt: skip
        return request(
            STREAMS_HEARTBEAT, 0, group_id=self.group.group_id, member_id=self.member_id, member_epoch=epoch,
            endpoint_information_epoch=-1, rebalance_timeout=1_000 * REBALANCE_TIMEOUT_S if is_full else -1,
            topology={"epoch": 0, "subtopologies": [subtopology]} if joins else None,
            active_tasks=([{"subtopology_id": "0", "partitions": owned}] if owned else []) if is_full else None,
            standby_tasks=() if is_full else None, warmup_tasks=() if is_full else None,
            process_id=self.name if joins else None, client_tags=() if joins else None, task_offsets=None,
            task_end_offsets=None,
        )  # fmt: skip

    def _given(self, answer: Any) -> frozenset[int] | None:
        if answer.active_tasks is None:
            return None
        return frozenset(index for task in answer.active_tasks for index in task.partitions)


def names(partitions: Any) -> tuple[str, ...]:
    """Partitions as a history names them."""
    return tuple(f"{TOPIC}-{index}" for index in sorted(partitions))
