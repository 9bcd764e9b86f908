"""Compactions that an administrator requests with `tidegate topic compact`.

The requests are in Redis and any broker takes them. The command publishes a message until they are served, so brokers
need not poll. A broker renews a lease on what it took; when it dies, the next message finds another broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from tidegate.errors import KafkaError, OffsetNotAvailable, StoreUnavailable
from tidegate.log.compaction import compact
from tidegate.log.compactor import resolved_after_s
from tidegate.log.record_format.record_log import RecordLog
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

if TYPE_CHECKING:
    from tidegate.log.partition import PartitionLog

logger = structlog.get_logger()

TAKE_COMPACTION = Script("log/take_compaction")
UPDATE_COMPACTION = Script("log/update_compaction")

LEASE_MS: Final = 15_000
_RENEWALS: Final = 3
"""How often a lease is renewed within its length."""
_AT_ONCE: Final = 100
"""Partitions that one broker takes; they wait together and are compacted one after another."""

FindItem = Callable[[str], "PartitionLog | RecordLog | None"]
Refresh = Callable[[], Awaitable[None]]
"""Raises StoreUnavailable."""


class CompactionRequests:
    """Serves the requests; `find_item` finds the log that a member of the upkeep list names, by the cached topics."""

    def __init__(self, store: Store, find_item: FindItem, refresh_topics: Refresh) -> None:
        self._store, self._find_item, self._refresh_topics = store, find_item, refresh_topics
        self._key = store.cluster_keys.compactions
        self._wanted = asyncio.Event()
        self._compacting = asyncio.Lock()
        self._serving = TaskSet()
        self._tasks = TaskSet()

    def start(self) -> None:
        """Listen, and serve what was requested before."""
        self._store.pubsub.listen(self._store.cluster_keys.compaction_requests, self._on_request)
        self._wanted.set()
        self._tasks.start(self._run(), "compaction-requests")

    async def close(self) -> None:
        """Stop; other brokers take over what this one serves."""
        self._store.pubsub.forget(self._store.cluster_keys.compaction_requests, self._on_request)
        await self._tasks.close()
        await self._serving.close()

    def _on_request(self, _: bytes | None) -> None:
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._take_all()
            except StoreUnavailable as error:
                logger.info("compaction_requests_wait", reason=str(error))
            except Exception:
                logger.exception("compaction_requests_failed")

    async def _take_all(self) -> None:
        while len(self._serving) < _AT_ONCE:
            item: bytes
            (item,) = await self._store.run(TAKE_COMPACTION, [self._key], LEASE_MS)
            if not item:
                return
            self._serving.start(self._serve(item.decode()), "compaction-request")

    async def _serve(self, item: str) -> None:
        renewing = self._tasks.start(self._renew(item))
        try:
            result = await self._result(item)
            await self._update(item, result)
        except (StoreUnavailable, OffsetNotAvailable) as error:
            logger.info("compaction_request_waits", partition=item, reason=str(error))
        except Exception:
            logger.exception("compaction_request_failed", partition=item)
        finally:
            renewing.cancel()

    async def _renew(self, item: str) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 1000 / _RENEWALS)
            try:
                await self._update(item, "")
            except StoreUnavailable:
                continue

    async def _update(self, item: str, result: str) -> None:
        await self._store.run(UPDATE_COMPACTION, [self._key], item, result, LEASE_MS)

    async def _result(self, item: str) -> str:
        """Compact; what the request gets to know. Raises StoreUnavailable, OffsetNotAvailable."""
        await self._refresh_topics()  # another broker may just have made or altered the topic
        log = self._find_item(item)
        if log is None:
            return "failed there is no such partition"
        if isinstance(log, RecordLog) or "compact" not in log.topic.config.cleanup_policy:
            return "failed cleanup.policy of the topic has no compact"
        try:
            return f"done {json.dumps(await self._compact(log))}"
        except (StoreUnavailable, OffsetNotAvailable):
            raise
        except KafkaError as error:
            return f"failed {error}"

    async def _compact(self, log: PartitionLog) -> dict[str, Any]:
        end = (await log.latest()).log_end_offset
        await asyncio.sleep(resolved_after_s(log))
        async with self._compacting:
            await log.latest()  # nothing above an unknown high watermark is compacted, as after a load of the log
            done = await compact(log, end, is_requested=True)
        if done is None:
            return {"offset": end, "records_dropped": 0, "bytes_before": 0, "bytes_after": 0}
        return {
            "offset": done.offset, "records_dropped": done.records_dropped,
            "bytes_before": done.bytes_before, "bytes_after": done.bytes_after,
        }  # fmt: skip
