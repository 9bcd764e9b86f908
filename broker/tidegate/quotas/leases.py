"""The buckets that clients of this broker use, and the loop that leases their shares from Redis.

One script reports and leases all of them, every PERIOD_MS while any is used. Nothing is sent for buckets that nobody
uses, and nothing at all without quotas. While Redis is away, brokers continue with the shares they have.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Final
from weakref import WeakValueDictionary

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.quotas.buckets import Bucket
from tidegate.quotas.entities import Quota, canonical_address
from tidegate.quotas.errors import ThrottlingQuotaExceeded
from tidegate.quotas.table import Limit, Quotas
from tidegate.store.batching import SingleFlight
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks

LEASE_QUOTAS = Script("security/lease_quotas")

PERIOD_MS: Final = 100
"""Between two reports of a bucket in use; what others use meanwhile is not known."""
LEASE_MS: Final = 500
"""After this time without a report a broker has no share any more."""
IDLE_S: Final = 2 * LEASE_MS / 1000
"""A bucket that was not used for so long is not reported any more; its lease has ended before it is used again."""
CLIENTS_MAX: Final = 20_000
"""Clients whose limits are remembered, and idle buckets that are not full yet; a client chooses its client id, so there
may be many."""
_BATCH: Final = 100
"""Buckets of one script, which takes about 1 ms then."""
_NAME_BYTES_MAX: Final = 200
"""Longer names of buckets are shortened to a digest, and limits of longer client ids are not remembered: a client id
may have 32 kB."""

BURST_S: Final = {
    Quota.PRODUCE: 1.0,
    Quota.FETCH: 1.0,
    Quota.REQUEST: 1.0,
    Quota.MUTATION: 11.0,
    Quota.CONNECTION: 1.0,
}
"""What may be used at once after a pause, in seconds of the rate. Mutations as in Kafka (11 windows of 1 s); for bytes
Kafka allows as much, so that the first 30 s at 1 MB/s transfer 40 MB there."""
TOKENS_PER_PERCENT: Final = 10_000.0
"""Request time is counted in microseconds: 1 % is 10 ms a second."""
REQUEST_WAIT_S_MAX: Final = 1.0
"""Throttle time for request time is at most this (`ClientRequestQuotaManager.maxThrottleTimeMs`)."""

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The buckets of one client by quota: its own, and its organisation's."""

    produce: Sequence[Bucket]
    fetch: Sequence[Bucket]
    request: Sequence[Bucket]
    mutation: Sequence[Bucket]


class QuotaLeases:
    """The limits of clients, and the spending of their tokens. `process` is this broker's, new at each start.

    `_buckets` has every bucket that something refers to: limits that are remembered or that a request has, `_active`
    (used within IDLE_S), `_refilling` (idle, and not full yet). The count of a new one begins at `_used_max`, the
    highest that idle ones of its quota had: Redis may have a count of that key.
    """

    def __init__(self, store: Store, quotas: Quotas, process: str, clock: Callable[[], float] = perf_counter) -> None:
        self.quotas = quotas
        self._store, self._process, self._clock = store, process, clock
        self._limits: dict[tuple[str, str, str], ClientLimits | None] = {}
        self._buckets = WeakValueDictionary[str, Bucket]()
        self._active: dict[str, Bucket] = {}
        self._refilling: dict[str, Bucket] = {}
        self._used_max = dict.fromkeys(Quota, 0.0)
        self._used = asyncio.Event()
        self._runs = SingleFlight[str]()
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Lease what is used from now on."""
        self._loops.run("quota-leases", self._run)

    async def close(self) -> None:
        """Stop; the leases end by themselves."""
        await self._loops.close()
        await self._runs.close()

    def forget_limits(self) -> None:
        """The quotas have changed: find the limits of clients again. Buckets continue."""
        self._limits.clear()

    # -- limits

    def of_client(self, org: str, principal: str, client_id: str) -> ClientLimits | None:
        """The limits of a client; None without any."""
        client = (org, principal, client_id)
        if client in self._limits:
            return self._limits[client]
        if len(self._limits) >= CLIENTS_MAX:
            self._limits.clear()
        user = principal.partition(":")[2]
        produce, fetch, request, mutation = (
            self._buckets_of(quota, self.quotas.table.of_client(org, user, client_id, quota))
            for quota in (Quota.PRODUCE, Quota.FETCH, Quota.REQUEST, Quota.MUTATION)
        )
        limited = produce or fetch or request or mutation
        limits = ClientLimits(produce, fetch, request, mutation) if limited else None
        if len(client_id) <= _NAME_BYTES_MAX:
            self._limits[client] = limits
        return limits

    def _buckets_of(self, quota: Quota, limits: Iterable[Limit]) -> list[Bucket]:
        return [self._bucket(quota, name, value) for name, value in limits]

    def _bucket(self, quota: Quota, name: str, value: float) -> Bucket:
        rate, burst_s = value * TOKENS_PER_PERCENT if quota is Quota.REQUEST else value, BURST_S[quota]
        key = self._store.cluster_keys.quota_bucket(_short(name))
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key, quota, rate, burst_s, self._clock(), self._used_max[quota])
        elif bucket.rate != rate:
            bucket.change_rate(rate, burst_s)
        return bucket

    # -- spending

    def spend(self, buckets: Sequence[Bucket], amount: float) -> float:
        """Spend tokens of every bucket; returns the time until the last one's debt is paid, in seconds."""
        now_s, wait_s = self._clock(), 0.0
        for bucket in buckets:
            wait_s = max(wait_s, bucket.spend(amount, now_s))
            self._active[bucket.key] = bucket
        if self._active:
            self._used.set()
        return wait_s

    def spend_request_time(self, buckets: Sequence[Bucket], seconds: float) -> float:
        """Spend request time; the time to wait is bounded as in Kafka."""
        return min(self.spend(buckets, seconds * 1e6), REQUEST_WAIT_S_MAX)

    def connect(self, host: str) -> float:
        """Count a connection from an address; returns for how long the address must wait, then it was not counted."""
        address = canonical_address(host)
        buckets = self._buckets_of(Quota.CONNECTION, self.quotas.table.of_address(address))
        now_s = self._clock()
        wait_s = max((bucket.wait_s(now_s) for bucket in buckets), default=0.0)
        if wait_s == 0:
            self.spend(buckets, 1)
        return wait_s

    async def mutate(self, org: str, principal: str, client_id: str, count: int, *, strict: bool) -> float:
        """Spend `count` partition mutations; returns the throttle time in seconds.

        A strict quota refuses mutations once it is used up, and throttles nothing else (KIP-599). Raises
        ThrottlingQuotaExceeded, StoreUnavailable.
        """
        limits = self.of_client(org, principal, client_id)
        if limits is None or not limits.mutation:
            return 0.0
        await self._lease_now(limits.mutation)
        now_s = self._clock()
        wait_s = max(bucket.wait_s(now_s) for bucket in limits.mutation)
        if strict and wait_s > 0:
            raise ThrottlingQuotaExceeded(f"the quota of controller mutations is used up: wait {wait_s:.1f} s")
        spent_s = self.spend(limits.mutation, count)
        return 0.0 if strict else spent_s

    def mutation_wait_s(self, org: str, principal: str, client_id: str) -> float:
        """Time until mutations are accepted again, in seconds."""
        limits, now_s = self.of_client(org, principal, client_id), self._clock()
        return max((one.wait_s(now_s) for one in limits.mutation), default=0.0) if limits is not None else 0.0

    # -- leasing

    async def _lease_now(self, buckets: Sequence[Bucket]) -> None:
        now_s = self._clock()
        for bucket in buckets:
            bucket.used_s = now_s
            self._active[bucket.key] = bucket
        self._used.set()
        await self.lease_used()

    async def _run(self) -> None:
        while True:
            await self._used.wait()
            try:
                await self.lease_used()
            except StoreUnavailable as error:
                logger.debug("quotas_not_leased", reason=str(error))
            await asyncio.sleep(PERIOD_MS / 1000)

    async def lease_used(self) -> None:
        """Report and lease every bucket in use. Raises StoreUnavailable."""
        await self._runs.do("lease", self._lease_used)

    async def _lease_used(self) -> None:
        now_s = self._clock()
        idle = [key for key, bucket in self._active.items() if now_s - bucket.used_s > IDLE_S]
        wanted = list(self._active.values())
        for at in range(0, len(wanted), _BATCH):
            await self._lease(wanted[at : at + _BATCH])
        for key in idle:  # after their last report
            if self._clock() - self._active[key].used_s > IDLE_S:
                self._deactivate(self._active.pop(key))
        if not self._active:
            self._used.clear()

    def _deactivate(self, bucket: Bucket) -> None:
        """Remember an idle bucket until it is full; above CLIENTS_MAX the oldest are forgotten, and Redis has their
        debts."""
        now_s = self._clock()
        self._used_max[bucket.quota] = max(self._used_max[bucket.quota], bucket.used)
        self._refilling.pop(bucket.key, None)
        if bucket.is_full(now_s):
            return
        if len(self._refilling) >= CLIENTS_MAX:
            left = {key: one for key, one in self._refilling.items() if not one.is_full(now_s)}
            self._refilling = dict(islice(left.items(), max(len(left) - CLIENTS_MAX // 2, 0), None))
        self._refilling[bucket.key] = bucket

    async def _lease(self, buckets: Sequence[Bucket]) -> None:
        now_s = self._clock()
        reports = [bucket.report(now_s) for bucket in buckets]
        args: list[str | int] = [self._process, LEASE_MS]
        for bucket, report in zip(buckets, reports, strict=True):
            args += map(repr, (bucket.rate, bucket.capacity, report.demand, report.confirmed, report.used))
        reply = await self._store.run(LEASE_QUOTAS, [bucket.key for bucket in buckets], *args)
        now_s = self._clock()
        for index, (bucket, report) in enumerate(zip(buckets, reports, strict=True)):
            bucket.lease(report, float(reply[2 * index]), float(reply[2 * index + 1]), now_s)


def _short(name: str) -> str:
    if len(name) <= _NAME_BYTES_MAX:
        return name
    return f"{name[: _NAME_BYTES_MAX // 2]}~{hashlib.sha256(name.encode()).hexdigest()}"
