"""Group members as client libraries have them: find the coordinator, join, sync, heartbeat, commit, leave.

A member retries with back-off, keeps its id through reconnections, and forgets it when the group does not know it.
Its slot decides when it leaves, crashes, hangs, or restarts as the same static member.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.member import ClassicMember, subscription
from tests.kit.wire import decode_response, encode_request, request
from tests.simulation.contact import Contact
from tests.simulation.frames import commit_frame, pack_assignment, unpack_assignment, versions_frame
from tests.simulation.history import GroupHistory
from tests.simulation.wire import Disconnected, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World

COMMIT, FETCH, FIND, JOIN, HEARTBEAT_REQUEST, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
TOPIC: Final = "t"
GRID_S: Final = 1 / 4
"""Members' timers fire on a grid, as those of a client that polls; it also lets heartbeats meet in a tick."""
STRAYS_SHARE: Final = 0.3
"""Members that go to any broker, as with an outdated coordinator: every broker serves every group."""
HELD_SHARE: Final = 0.5
"""Members that name their software, one of which is known to support delayed heartbeats."""
RECONNECTS_S: Final = 2.0
"""Longer than a client takes to connect again where nothing is slow."""
_SOFTWARE: Final = "apache-kafka-java"
_CODE: Final = struct.Struct(">h")
_CODE_AT: Final = 9
_RETRIED: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.request_timed_out,
    }
)


class Fenced(Exception):
    """Another process is this static member now."""


class Member(ClassicMember):
    """One member process, from start to end."""

    metadata = subscription([TOPIC])
    protocols = ("range", "roundrobin")

    def __init__(
        self, world: World, history: GroupHistory, name: str, instance_id: str | None, rng: random.Random
    ) -> None:
        self.world, self.history, self.name, self.instance_id, self.rng = world, history, name, instance_id, rng
        self.loop, self.group_id = world.loop, history.group_id
        traits = world.traits[history.group_id]
        self.session_timeout_s, self.rebalance_timeout_s = traits.session_timeout_s, traits.rebalance_timeout_s
        self.interval_s, self.commit_s, self.version = traits.interval_s, traits.commit_s, traits.join_version
        self.request_timeout_s = traits.session_timeout_s / 5
        self._names_software = rng.random() < HELD_SHARE
        self._heartbeat_timeout_s = traits.session_timeout_s / 2 if self._names_software else self.request_timeout_s
        """Longer than a hold where there may be one."""
        self.session_timeout_ms = 1_000 * self.session_timeout_s
        self.rebalance_timeout_ms = 1_000 * self.rebalance_timeout_s
        asked = request(FIND, 4, key_type=0, coordinator_keys=(history.group_id,))
        self._find_frame = encode_request(asked, 0, name)
        self.partitions: tuple[int, ...] = ()
        self.contact = Contact()
        """A sync or join that is answered at once renews no session (spec E12, S12)."""
        self.gone_s: float | None = None
        self._silences: deque[tuple[float, float]] = deque(maxlen=5)
        """From when to when it was silent of its own will."""
        self.join_lost = False
        """Whether an answer of its present round was lost, or is awaited."""
        self._joins: deque[tuple[float, bool]] = deque(maxlen=5)
        """When it joined, and whether after a lost answer: then it may begin a round of its own accord."""
        self._first_join_s = -1e9
        """When the first join was sent of those whose answers are unknown until now."""
        self.consuming = False
        self._disconnected_s = -1e9
        self._strays = rng.random() < STRAYS_SHARE
        self._joining = True
        self._wire: Wire | None = None
        self._woken: asyncio.Future[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._commit_timer: asyncio.TimerHandle | None = None
        self._frame = b""
        self._unanswered_s: float | None = None
        self._overdue = False
        """Whether the next heartbeat is due and waits for the answer to the last."""
        self._code = ErrorCode.none

    # -- what the checks ask

    @property
    def is_assigned(self) -> bool:
        """Whether it consumes, or has just lost its connection, as to a broker that moves clients to others."""
        reconnects = not self._joining and self.loop.now - self._disconnected_s < RECONNECTS_S
        return self.consuming or reconnects

    def was_silent(self, since_s: float, until_s: float) -> bool:
        """Whether it was gone, silent of its own will, or waiting for a host that is gone, at any time between."""
        gone = self.gone_s is not None and self.gone_s <= until_s
        waits_for_nobody = not self.consuming and self._wire is not None and self._wire.deaf
        return gone or waits_for_nobody or any(start <= until_s and end > since_s for start, end in self._silences)

    def might_rejoin(self, at_s: float) -> bool:
        """Whether the join that it sent last before an event's time, in whole milliseconds, followed a lost answer."""
        return next((lost for sent_s, lost in reversed(self._joins) if sent_s < at_s + 1 / 1000), False)

    # -- life

    async def run(self) -> None:
        """Until it is fenced or cancelled."""
        while True:
            try:
                await self._connect()
                if self._joining:
                    await self._join()
                await self._consume()
            except Disconnected:
                await asyncio.sleep(self.rng.choice((1 / 16, 1 / 8, 1 / 4)))
            except Fenced:
                self.history.note(f"{self.name} is fenced")
                self.crash()
                return

    def crash(self, closing: bool = True) -> None:
        """The process ends; its connection is closed by its host, or nobody says anything."""
        self.history.note(f"{self.name} crashes{'' if closing else ' in silence'}")
        self.gone_s = self.loop.now
        self._stop()
        if self._wire is not None and closing:
            self._wire.close()

    async def leave(self) -> None:
        """Leave the group, as `close` does; a failure is not retried."""
        self.history.note(f"{self.name} leaves")
        self.gone_s = self.loop.now
        self._stop()
        if not self.member_id or self.instance_id:
            return
        try:
            await self._connect()
            await self._ask(self.leave_request("done"))
        except Disconnected:
            pass
        finally:
            if self._wire is not None:
                self._wire.close()

    def hang(self, seconds: float) -> None:
        """Do nothing for a while, as a process that collects garbage or waits for a database; then continue."""
        if not self.consuming:
            return
        self.history.note(f"{self.name} hangs for {seconds:.1f} s")
        self._silences.append((self.loop.now, self.loop.now + seconds))
        self._stop()
        self._commit_timer = self._on_grid(seconds, self._commit)
        self._heartbeat_timer = self._on_grid(seconds + GRID_S, self._heartbeat)

    # -- connections

    async def _connect(self) -> None:
        if self._wire is not None and self._wire.open:
            return
        self._wire = await self._dial(self.rng.choice(self.world.ports))
        payload = await self._ask_frame(self._find_frame, self.request_timeout_s)
        found = decode_response(FIND, 4, payload)[1].coordinators[0]
        if found.error_code is not ErrorCode.none:
            raise Disconnected
        port = self.rng.choice(self.world.ports) if self._strays else found.port
        if port != self._wire.port:
            self._wire.close()
            self._wire = await self._dial(port)

    async def _dial(self, port: int) -> Wire:
        wire = Wire(self.world.net, port, self._disconnected)
        await wire.ready()
        if self._names_software:
            await wire.ask_frame(versions_frame(self.name, _SOFTWARE), self.request_timeout_s)
        return wire

    def _renewed(self, sent_s: float) -> None:
        assert self._wire is not None
        self.contact.answered(sent_s, self.loop.now, self._wire.port)

    def _disconnected(self) -> None:
        self._disconnected_s = self.loop.now
        self._wake()

    async def _ask(self, request: Any, timeout_s: float = 0.0) -> Any:
        schema = type(request)
        frame = encode_request(request, 0, self.name)
        payload = await self._ask_frame(frame, timeout_s or self.request_timeout_s)
        return decode_response(int(schema.__api_key__), int(schema.__version__), payload)[1]

    async def _ask_frame(self, frame: bytes, timeout_s: float) -> bytes:
        wire, sent_s = self._wire, self.loop.now
        assert wire is not None
        try:
            return await wire.ask_frame(frame, timeout_s)
        except Disconnected:
            if wire.deaf:  # a parked request waits for long, and nobody can end its wait
                self._silences.append((sent_s, self.loop.now))
            raise

    def _note_code(self, code: ErrorCode) -> None:
        """What a code of the coordinator means for the membership. Raises Fenced, Disconnected."""
        if code is ErrorCode.fenced_instance_id:
            raise Fenced
        if code in _RETRIED:
            if self._wire is not None:
                self._wire.close()
            raise Disconnected
        self._joining = True
        if code is ErrorCode.unknown_member_id:
            self.history.note(f"{self.name} is unknown to the group")
            self.member_id, self.generation = "", -1
        elif code is ErrorCode.illegal_generation:
            self.history.note(f"{self.name} learns that generation {self.generation} is over")
            self.generation = -1
        elif code is not ErrorCode.rebalance_in_progress:
            raise self.history.broken("P7", f"{self.name} was answered {code.name}")

    # -- join and sync

    async def _join(self) -> None:
        """Until this member has an assignment."""
        while True:
            self.partitions = ()
            joined = await self._join_once()
            if joined is None:
                continue
            code = await self._sync(joined)
            if code is ErrorCode.none:
                break
            self._note_code(code)
        self._joining = self.join_lost = False
        await self._fetch_offsets()

    async def _join_once(self) -> Any:
        """One JoinGroup; None where the answer only changes what to ask next."""
        floor, sent_s = self.history.generation, self.loop.now
        lost, self.join_lost = self.join_lost, True
        if not lost:
            self._first_join_s = sent_s
        self._joins.append((sent_s, lost))
        joined = await self._ask(self.join_request(self.version), self.rebalance_timeout_s + 5)
        self.join_lost = lost
        code = joined.error_code
        if code is ErrorCode.member_id_required:
            self.member_id = joined.member_id
            self.history.members[self.member_id] = self
            self._renewed(sent_s)
            return None
        if code is not ErrorCode.none:
            self._note_code(code)
            return None
        if joined.generation_id > self.generation:  # a repeated join may be answered at once, which renews nothing
            self._renewed(self._first_join_s)
        self.member_id, self.generation = joined.member_id, joined.generation_id
        elected = (joined.leader, joined.protocol_name or "")
        self.history.joined(self, self.member_id, self.generation, elected, floor, sent_s)
        return joined

    async def _sync(self, joined: Any) -> ErrorCode:
        skip = getattr(joined, "skip_assignment", False)
        ids = [] if skip else sorted(member.member_id for member in joined.members)
        plan = {
            member_id: pack_assignment(TOPIC, tuple(range(self.world.partition_count))[at :: len(ids)])
            for at, member_id in enumerate(ids)
        }
        self.join_lost = True
        synced = await self._ask(self.sync_request(plan, joined.protocol_name), self.rebalance_timeout_s + 5)
        if synced.error_code is ErrorCode.none:
            self.partitions = unpack_assignment(synced.assignment)
            self.history.assigned(self, self.member_id, self.generation, self.partitions)
        return synced.error_code

    async def _fetch_offsets(self) -> None:
        begun = self.history.read_begins()
        answer = (await self._ask(self.offsets_request(TOPIC, range(len(begun))))).groups[0]
        if answer.error_code is not ErrorCode.none:
            if answer.error_code in _RETRIED:
                raise Disconnected
            raise self.history.broken("P7", f"OffsetFetch was answered {answer.error_code.name}")
        offsets = {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
        self.history.read_ends(self.name, begun, offsets)

    # -- consume

    async def _consume(self) -> None:
        """Heartbeats and commits until it must join again. Raises Disconnected, Fenced."""
        self._frame = encode_request(self.heartbeat_request(), 0, self.name)
        self._woken, self._unanswered_s, self._code = self.loop.create_future(), None, ErrorCode.none
        self.consuming = True
        if self._heartbeat_timer is None:
            overdue = self.contact.last_s + self.interval_s <= self.loop.now
            self._heartbeat_timer = self._on_grid(
                0 if overdue else self.rng.uniform(0, self.interval_s), self._heartbeat
            )
            self._commit_timer = self._on_grid(self.rng.uniform(0, self.commit_s), self._commit)
        try:
            await self._woken
        finally:
            self.consuming = False
            self._stop()
        if self._code is not ErrorCode.none:
            self._note_code(self._code)
            if self._code is ErrorCode.rebalance_in_progress and self.rng.random() < 0.5:
                await self._commit_and_wait()
        elif self._wire is None or not self._wire.open:
            raise Disconnected

    def _on_grid(self, delay_s: float, callback: Any) -> asyncio.TimerHandle:
        return self.loop.call_at(GRID_S * (int((self.loop.now + delay_s) / GRID_S) + 1), callback)

    def _stop(self) -> None:
        for timer in (self._heartbeat_timer, self._commit_timer):
            if timer is not None:
                timer.cancel()
        self._heartbeat_timer = self._commit_timer = None
        self._overdue = False

    def _wake(self, code: ErrorCode = ErrorCode.none) -> None:
        if self._woken is not None and not self._woken.done():
            self._code = code
            self._woken.set_result(None)

    def _heartbeat(self) -> None:
        wire, now = self._wire, self.loop.now
        if wire is None or not wire.open:
            self._wake()
            return
        if self._unanswered_s is not None:
            self._wait_for_answer(wire, self._unanswered_s)
            return
        self._unanswered_s, self._overdue = now, False
        wire.send(self._frame, self._beaten)
        self._heartbeat_timer = self.loop.call_at(now + self.interval_s, self._heartbeat)

    def _wait_for_answer(self, wire: Wire, sent_s: float) -> None:
        """A heartbeat is due and the last is not answered: one at a time, and no longer than the client waits."""
        now, until_s = self.loop.now, sent_s + self._heartbeat_timeout_s
        if now < until_s:
            self._overdue = True
            self._heartbeat_timer = self.loop.call_at(min(now + self.interval_s, until_s), self._heartbeat)
            return
        self.history.note(f"{self.name} has no answer to its heartbeat")
        if wire.deaf:
            self._silences.append((sent_s, now))
        wire.close()

    def _beaten(self, payload: bytes) -> None:
        sent_s, self._unanswered_s = self._unanswered_s, None
        (code,) = _CODE.unpack_from(payload, _CODE_AT)
        if sent_s is not None:
            self.history.heartbeat_answered(self.name, sent_s)
            if code in (0, 27):
                self._renewed(sent_s)
        if code:
            self._wake(ErrorCode(code))
        elif self._overdue and self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat()

    # -- commits

    def _commit_frame(self) -> tuple[bytes, list[tuple[int, int]]]:
        entries = self.history.commit_sent(self.generation, self.partitions)
        who = (self.name, self.history.group_id, self.generation, self.member_id, self.instance_id)
        return commit_frame(*who, TOPIC, entries), entries

    def _committed(self, payload: bytes, entries: list[tuple[int, int]]) -> ErrorCode:
        """The code of the group, which is that of each partition, is last in the answer."""
        code = ErrorCode(_CODE.unpack_from(payload, len(payload) - 2)[0])
        if code is ErrorCode.none:
            self.history.commit_acked(entries)
        return code

    def _commit(self) -> None:
        wire = self._wire
        if wire is None or not wire.open:
            self._wake()
            return
        self._commit_timer = self.loop.call_at(self.loop.now + self.commit_s, self._commit)
        if not self.partitions:
            return
        frame, entries = self._commit_frame()

        def answered(payload: bytes) -> None:
            code = self._committed(payload, entries)
            if code is not ErrorCode.none and self.consuming:
                self._wake(code)

        wire.send(frame, answered)

    async def _commit_and_wait(self) -> None:
        """What a consumer does before it gives its partitions up. Its outcome does not matter to it."""
        if self.partitions and self.member_id and self.generation >= 0 and self._wire is not None:
            frame, entries = self._commit_frame()
            self._committed(await self._wire.ask_frame(frame, self.request_timeout_s), entries)
