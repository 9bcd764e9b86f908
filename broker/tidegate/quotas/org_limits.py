"""How many connections, and how many bytes of records in Redis, each organisation has, and whether it may have more.

The limits of topics and partitions need nothing here: the scripts that create them count. Without limits nothing is
counted or read.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tidegate.quotas.entities import Quota
from tidegate.quotas.table import Quotas
from tidegate.store.calls import gather_readable, log_faulty, parsed
from tidegate.store.keys import LogKeys
from tidegate.store.log_sizes import log_bytes
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
        self._limited = {Quota.CONNECTIONS: asyncio.Event(), Quota.LOG_BYTES: asyncio.Event()}
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Count from now on, whenever there are limits."""
        self.on_quotas_changed()
        report, measure = self.report_connections, self.measure_logs
        self._loops.run("org-connections", lambda: self._repeat(Quota.CONNECTIONS, REPORT_MS, report))
        self._loops.run("org-bytes", lambda: self._repeat(Quota.LOG_BYTES, MEASURE_MS, measure))

    async def close(self) -> None:
        """Stop; what was reported ends by itself."""
        await self._loops.close()

    def on_quotas_changed(self) -> bool:
        """Begin or end to count; returns whether connections are limited."""
        for quota, limited in self._limited.items():
            if self._quotas.table.limits(quota):
                limited.set()
            else:
                limited.clear()
        if not self._limited[Quota.LOG_BYTES].is_set():
            self._pressure.full_orgs = frozenset()
        return self._limited[Quota.CONNECTIONS].is_set()

    async def _repeat(self, quota: Quota, interval_ms: int, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._limited[quota].wait()
            await step()
            await asyncio.sleep(interval_ms / 1000)

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
        limits: dict[str, float] = {}
        logs: list[tuple[str, LogKeys, str]] = []
        log_keys = self._store.log_keys
        for topic in self._topics():
            limit = table.amount_of_org(topic.org, Quota.LOG_BYTES)
            if limit is not None:
                limits[topic.org] = limit
                place = topic.org, topic.name
                logs += [
                    (topic.org, log_keys(*place, index, topic.topic_hex, topic.format), topic.format)
                    for index in range(topic.partition_count)
                ]
        used: Counter[str] = Counter()
        for start in range(0, len(logs), _LOGS_AT_ONCE):
            some = logs[start : start + _LOGS_AT_ONCE]
            calls = {keys.log: parsed(log_bytes(self._store, keys, log_format)) for _, keys, log_format in some}
            sizes, faulty = await gather_readable(calls)
            log_faulty("org-bytes", faulty)
            for org, keys, _ in some:
                used[org] += sizes.get(keys.log, 0)
        self._pressure.full_orgs = frozenset(org for org, limit in limits.items() if used[org] >= limit)
