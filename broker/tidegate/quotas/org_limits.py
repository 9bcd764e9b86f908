"""How many connections, and how many bytes of records in Redis, each organisation has, and whether it may have more.

The limits of topics and partitions need nothing here: the scripts that create them count. Without limits nothing is
counted or read.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.quotas.entities import Quota
from tidegate.quotas.table import Quotas
from tidegate.store.memory_pressure import MemoryPressure
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.model import Topic

REPORT_CONNECTIONS = Script("security/report_connections")

REPORT_MS: Final = 500
"""Between two reports of connections; what other brokers admit meanwhile is not known."""
REPORTED_MS: Final = 5_000
"""The connections of a broker that reports no more count for so long."""
MEASURE_MS: Final = 5_000
"""Between two measurements of the records in Redis."""
_LOGS_AT_ONCE: Final = 200


class OrgLimits:
    """One broker's side. `connections` yields the organisation of each of its clients, `topics` all topics.

    `process` names this broker, and is new at each start.
    """

    def __init__(
        self,
        store: Store,
        quotas: Quotas,
        pressure: MemoryPressure,
        process: str,
        connections: Callable[[], Iterable[str]],
        topics: Callable[[], Iterable[Topic]],
    ) -> None:
        self._store, self._quotas, self._pressure, self._process = store, quotas, pressure, process
        self._connections, self._topics = connections, topics
        self._own: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Count from now on, if there are limits."""
        self._loops.every("org-connections", REPORT_MS, self.report_connections)
        self._loops.every("org-bytes", MEASURE_MS, self.measure_logs)

    async def close(self) -> None:
        """Stop; what was reported ends by itself."""
        await self._loops.close()

    def admits(self, org: str) -> bool:
        """Count one more connection of an organisation, unless it has as many as it may."""
        limit = self._quotas.table.amount_of_org(org, Quota.CONNECTIONS)
        if limit is None:
            return True
        if self._own[org] + self._elsewhere[org] >= limit:
            return False
        self._own[org] += 1
        return True

    async def report_connections(self) -> None:
        """Report this broker's connections, and get those of the others. Raises StoreUnavailable."""
        if not self._quotas.table.limits(Quota.CONNECTIONS):
            return
        self._own = own = Counter(self._connections())
        keys = [self._store.cluster_keys.org_connections]
        reply = await self._store.run(REPORT_CONNECTIONS, keys, self._process, REPORTED_MS, json.dumps(own))
        elsewhere: Counter[str] = Counter()
        for counts in reply:
            elsewhere.update(json.loads(counts))
        self._elsewhere = elsewhere

    async def measure_logs(self) -> None:
        """Find the organisations whose records fill what they may have. Raises StoreUnavailable."""
        table = self._quotas.table
        if not table.limits(Quota.LOG_BYTES):
            self._pressure.full_orgs = frozenset()
            return
        limits: dict[str, float] = {}
        metas: list[tuple[str, str]] = []
        log_keys = self._store.log_keys
        for topic in self._topics():
            limit = table.amount_of_org(topic.org, Quota.LOG_BYTES)
            if limit is not None:
                limits[topic.org] = limit
                place = topic.org, topic.name
                metas += [
                    (topic.org, log_keys(*place, index, topic.topic_hex, topic.format).meta)
                    for index in range(topic.partition_count)
                ]
        used: Counter[str] = Counter()
        for start in range(0, len(metas), _LOGS_AT_ONCE):
            some = metas[start : start + _LOGS_AT_ONCE]
            sizes = await asyncio.gather(*(self._store.read("HGET", meta, "bytes") for _, meta in some))
            for (org, _), size in zip(some, sizes, strict=True):
                used[org] += int(size or 0)
        self._pressure.full_orgs = frozenset(org for org, limit in limits.items() if used[org] >= limit)
