"""What one broker keeps of share groups: the decisions on members, the records in flight, the share sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol
from uuid import UUID

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.groups.commit_answers import Prove
from tidegate.groups.consumer.topic_view import CatalogTopics
from tidegate.groups.expire_and_retry import BrokerName
from tidegate.groups.expiry import DEAD_LETTERS_KIND, SHARE_KIND, ExpireOne
from tidegate.groups.share import dead_letters, starting
from tidegate.groups.share.coordinator import ShareGroups
from tidegate.groups.share.dead_letters import DeadLetters
from tidegate.groups.share.records import ShareRecords
from tidegate.groups.share.sessions import Acquirer, SharePartition, ShareSession, ShareSessions
from tidegate.groups.share.starting import StartOffsets
from tidegate.groups.share.wakeups import ShareWakeups
from tidegate.groups.share.windows import Windows
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.topics.catalog import Catalog
from tidegate.topics.model import Topic

SESSIONS_MAX: Final = 2_000
"""Share sessions of one broker, as `group.share.max.share.sessions` in Kafka; a member beyond it tries again later."""


class Log(starting.Log, dead_letters.Log, Protocol):
    """The log of a partition, as far as share groups need it."""


LogOf = Callable[[Topic, int], Log]
"""The log of a topic's partition."""

logger = structlog.get_logger()


class ShareService:
    """Share groups at one broker. `broker` is the broker name in events; `prove` proves acknowledgements."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        catalog: Catalog,
        log_of: LogOf,
        broker: BrokerName,
        prove: Prove | None = None,
    ) -> None:
        self._catalog, self._log_of = catalog, log_of
        self.records = ShareRecords(store, prove)
        self.start_offsets = StartOffsets(store, self._log)
        self.groups = ShareGroups(store, settings, CatalogTopics(catalog), self.start_offsets, broker)
        self.sessions = ShareSessions(SESSIONS_MAX, shares_of(settings.memory_max).share_sessions, self._session_ended)
        self.wakeups = ShareWakeups(store.pubsub)
        self.windows = Windows()
        self.dead_letters = DeadLetters(store, settings, catalog, log_of)
        self.expirers: Mapping[str, ExpireOne] = {
            SHARE_KIND: self.groups.expire,
            DEAD_LETTERS_KIND: self.dead_letters.expire,
        }
        self._tasks = TaskSet()

    async def start(self) -> None:
        """Nothing runs until there is work."""

    async def close(self) -> None:
        """Cancel what is under way; locks that are not released expire."""
        await self._tasks.close()
        await self.dead_letters.close()
        await self.groups.close()

    def _log(self, org: str, topic_id: UUID, index: int) -> Log | None:
        topic: Topic | None = self._catalog.by_id(org, topic_id)
        return None if topic is None or index >= topic.partition_count else self._log_of(topic, index)

    def _session_ended(self, session: ShareSession) -> None:
        self.release_later(session)

    def release_later(self, session: ShareSession) -> None:
        """Release what a session has acquired; if Redis is away, its locks expire."""
        self._tasks.start(self._release(session), name="share-release")

    async def _release(self, session: ShareSession) -> None:
        await self._release_of(session, (session.acquirer, session.all_partitions()))

    async def close_session(self, session: ShareSession) -> None:
        """Release what the member has of a session that it closed; if Redis is away, its locks expire.

        Of partitions that it forgot before, which it may read elsewhere now, only what this session has acquired.
        """
        everywhere = Acquirer(session.member_id), list(session.partitions)
        await self._release_of(session, everywhere, (session.acquirer, session.released))

    async def _release_of(self, session: ShareSession, *released: tuple[Acquirer, Sequence[SharePartition]]) -> None:
        try:
            for acquirer, partitions in released:
                await self.records.release(session.keys, acquirer, partitions)
        except StoreUnavailable as error:
            logger.warning("share_records_not_released", group=session.keys.ref, reason=str(error))
