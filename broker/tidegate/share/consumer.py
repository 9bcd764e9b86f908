"""`ShareConsumer`: membership, share sessions and acknowledgements of one member of a share group (KIP-932)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Self

from kio.schema.errors import ErrorCode

from tidegate.protocol.api_keys import ApiKey
from tidegate.share.connection import Connection, ShareError, raise_for, request_module
from tidegate.share.membership import PAUSE_S, RETRIES, Membership
from tidegate.share.records import Kind, Place, ShareRecord, batches, by_topic, read
from tidegate.share.sasl import Sasl

_FINAL: Final = -1
_SESSION_EPOCH_MAX: Final = 2_147_483_647
_REOPENS: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})


@dataclass(frozen=True, slots=True)
class Rejected:
    """Acknowledgements of a partition that the broker refused: its records are delivered again."""

    topic: str
    partition: int
    offsets: tuple[int, ...]
    code: ErrorCode


@dataclass(slots=True)
class _Session:
    """The share session at one broker."""

    connection: Connection
    epoch: int = 0
    places: set[Place] = field(default_factory=set)
    pending: dict[Place, dict[int, Kind]] = field(default_factory=dict)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _SESSION_EPOCH_MAX else self.epoch + 1

    def restart(self) -> None:
        """The broker knows no session: what was acquired is lost to this member."""
        self.epoch = 0
        self.places.clear()
        self.pending.clear()


class ShareConsumer:
    """A member of a share group, for one task. Records that are not acknowledged when it closes are released.

    `bootstrap` is `host:port`, or several with commas.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        topics: Iterable[str],
        client_id: str = "tidegate-share",
        tls: ssl.SSLContext | None = None,
        sasl: Sasl | None = None,
        max_records: int = 500,
        max_bytes: int = 1 << 20,
        timeout_s: float = 10.0,
    ) -> None:
        self._member = Membership(bootstrap, group, topics, client_id, tls, timeout_s, sasl)
        self._timeout_s = timeout_s
        self._max_records, self._max_bytes = max_records, max_bytes
        self._sessions: dict[int, _Session] = {}
        self._held: dict[tuple[str, int, int], Place] = {}
        self._rejected: list[Rejected] = []
        self._next_node = 0
        self._is_stale = False
        """Whether a broker refused a partition: another one may lead it now."""

    @property
    def member_id(self) -> str:
        """The member's id in the group."""
        return self._member.member_id

    @property
    def assignment(self) -> list[tuple[str, int]]:
        """Topics and partitions that the member reads, in order."""
        names = self._member.names
        return sorted((names[topic_id], index) for topic_id, index in self._member.assigned if topic_id in names)

    async def __aenter__(self) -> Self:
        await self._member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            with contextlib.suppress(ShareError):
                if session.epoch:
                    await self._acknowledge(session, _FINAL)
            await session.connection.close()
        await self._member.close()

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        """Records one after the other; each is accepted when the next one is asked for, unless acknowledged before."""
        while True:
            for record in await self.poll(self._timeout_s):
                yield record
                self.accept(record)

    # -- records

    async def poll(self, timeout_s: float = 1.0) -> list[ShareRecord]:
        """Send what was acknowledged, and acquire records; [] if there are none in time.

        Raises ShareError if the group or its topics are refused.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            if self._member.failure is not None:
                raise self._member.failure
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
            found = await self._fetch_some(left_s)
            if found or left_s <= 0:
                return found

    def accept(self, *records: ShareRecord) -> None:
        """Their processing is done: they are not delivered again."""
        self._note(records, Kind.ACCEPT)

    def release(self, *records: ShareRecord) -> None:
        """Their processing failed: they are delivered again, until the group's delivery limit."""
        self._note(records, Kind.RELEASE)

    def reject(self, *records: ShareRecord) -> None:
        """They cannot be processed: they are not delivered again."""
        self._note(records, Kind.REJECT)

    async def renew(self, *records: ShareRecord) -> list[Rejected]:
        """Restart their locks: their processing takes longer (KIP-1222). Raises ShareError."""
        found: list[Rejected] = []
        for session in self._sessions.values():
            kinds: dict[Place, dict[int, Kind]] = {}
            for record in records:
                place = self._held.get((record.topic, record.partition, record.offset))
                if place is not None and place in session.places:
                    kinds.setdefault(place, {})[record.offset] = Kind.RENEW
            if kinds:
                waiting, session.pending = session.pending, kinds
                try:
                    found += await self._acknowledge(session, session.epoch, renews=True)
                finally:
                    session.pending = waiting
        return found

    async def commit(self) -> list[Rejected]:
        """Send the acknowledgements so far; all that were refused since the last commit. Raises ShareError."""
        found, self._rejected = self._rejected, []
        for session in self._sessions.values():
            if session.pending:
                found += await self._acknowledge(session, session.epoch)
        return found

    def _note(self, records: Iterable[ShareRecord], kind: Kind) -> None:
        for record in records:
            name = record.topic, record.partition, record.offset
            place = self._held.pop(name, None)
            if place is None:  # acknowledged before, or its session is lost: then it is delivered again
                continue
            session = next((one for one in self._sessions.values() if place in one.places), None)
            if session is not None:
                session.pending.setdefault(place, {})[record.offset] = kind

    async def _fetch_some(self, wait_s: float) -> list[ShareRecord]:
        """One fetch at the next broker that leads assigned partitions; several brokers share the time."""
        if self._is_stale:
            self._is_stale = False
            await asyncio.sleep(min(wait_s, PAUSE_S))
            await self._member.refresh()
        nodes = sorted(
            {self._member.leaders[place] for place in self._member.assigned if place in self._member.leaders}
        )
        nodes += [node for node, one in self._sessions.items() if node not in nodes and (one.pending or one.places)]
        if not nodes:
            await asyncio.sleep(min(wait_s, PAUSE_S))
            return []
        self._next_node += 1
        node = nodes[self._next_node % len(nodes)]
        session = self._session(node)
        try:
            return await self._fetch(node, session, wait_s / len(nodes) if len(nodes) > 1 else wait_s)
        except ShareError as error:
            if error.code is None or error.code in _REOPENS:
                self._forget_records(session)
                session.restart()
            elif error.code not in RETRIES:
                raise
            await asyncio.sleep(min(wait_s, PAUSE_S))
            await self._member.refresh()
            return []

    async def _fetch(self, node: int, session: _Session, wait_s: float) -> list[ShareRecord]:
        wanted = {place for place in self._member.assigned if self._member.leaders.get(place) == node}
        acknowledged, session.pending = session.pending, {}
        added = wanted - session.places
        module = request_module(ApiKey.SHARE_FETCH)
        named = by_topic({*added, *acknowledged})
        topics = tuple(
            module.FetchTopic(
                topic_id=topic_id,
                partitions=tuple(
                    module.FetchPartition(
                        partition_index=index,
                        acknowledgement_batches=_batches(module, acknowledged.get((topic_id, index), {})),
                    )
                    for index in indexes
                ),
            )
            for topic_id, indexes in named.items()
        )
        forgotten = by_topic(session.places - wanted)
        answer = await session.connection.ask(
            ApiKey.SHARE_FETCH,
            wait_s,
            group_id=self._member.group,
            member_id=self._member.member_id,
            share_session_epoch=session.epoch,
            max_wait=timedelta(seconds=wait_s),
            min_bytes=1,
            max_bytes=self._max_bytes,
            max_records=self._max_records,
            batch_size=self._max_records,
            share_acquire_mode=0,
            is_renew_ack=False,
            topics=topics,
            forgotten_topics_data=tuple(
                module.ForgottenTopic(topic_id=topic_id, partitions=tuple(indexes))
                for topic_id, indexes in forgotten.items()
            ),
        )
        raise_for(answer)
        session.advance()
        session.places = wanted | {place for place in session.places if place in wanted}
        return self._received(session, answer, acknowledged)

    def _received(self, session: _Session, answer: Any, sent: Mapping[Place, Mapping[int, Kind]]) -> list[ShareRecord]:
        found: list[ShareRecord] = []
        for topic in answer.responses:
            name = self._member.names.get(topic.topic_id, "")
            for partition in topic.partitions:
                place = topic.topic_id, partition.partition_index
                records, gaps = read(name, partition)
                found += records
                self._held.update({(name, place[1], record.offset): place for record in records})
                refused = ErrorCode(int(partition.acknowledge_error_code))
                if refused is not ErrorCode.none:
                    offsets = tuple(sorted(sent.get(place, ())))
                    self._rejected.append(Rejected(name, place[1], offsets, refused))
                failed = ErrorCode(int(partition.error_code))
                if failed is ErrorCode.topic_authorization_failed:
                    raise ShareError(f"{name} may not be read", failed)
                self._is_stale = self._is_stale or failed is not ErrorCode.none
                if gaps:
                    session.pending.setdefault(place, {}).update(dict.fromkeys(gaps, Kind.GAP))
        return found

    async def _acknowledge(self, session: _Session, epoch: int, renews: bool = False) -> list[Rejected]:
        module, sent = request_module(ApiKey.SHARE_ACKNOWLEDGE), session.pending
        topics = tuple(
            module.AcknowledgeTopic(
                topic_id=topic_id,
                partitions=tuple(
                    module.AcknowledgePartition(
                        partition_index=index, acknowledgement_batches=_batches(module, sent[topic_id, index])
                    )
                    for index in indexes
                ),
            )
            for topic_id, indexes in by_topic(sent).items()
        )
        session.pending = {}
        answer = await session.connection.ask(
            ApiKey.SHARE_ACKNOWLEDGE,
            group_id=self._member.group,
            member_id=self._member.member_id,
            share_session_epoch=epoch,
            is_renew_ack=renews,
            topics=topics,
        )
        raise_for(answer)
        session.advance()
        return [
            Rejected(
                self._member.names.get(topic.topic_id, ""),
                one.partition_index,
                tuple(sorted(sent.get((topic.topic_id, one.partition_index), ()))),
                one.error_code,
            )
            for topic in answer.responses
            for one in topic.partitions
            if one.error_code is not ErrorCode.none
        ]

    def _session(self, node: int) -> _Session:
        if node not in self._sessions:
            self._sessions[node] = _Session(self._member.connection(node))
        return self._sessions[node]

    def _forget_records(self, session: _Session) -> None:
        self._held = {name: place for name, place in self._held.items() if place not in session.places}


def _batches(module: Any, kinds: Mapping[int, Kind]) -> tuple[Any, ...]:
    return tuple(
        module.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=tuple(types))
        for first, last, types in batches(dict(kinds))
    )
