"""One broker without its ports: `build` creates its components and connects them; `Broker` starts, drains, stops them.

The process keeps no durable state: everything that must survive is in Redis. `app` opens the ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from time import perf_counter
from typing import Final, Protocol
from uuid import UUID

import structlog

from tidegate.apis import registry
from tidegate.apis.call import BrokerContext
from tidegate.apis.mirroring import forget_mirrors
from tidegate.audit.trail import AuditTrail
from tidegate.cluster.addresses import Endpoints
from tidegate.cluster.broker_lease import BrokerInfo, BrokerLease, LeaseEvents
from tidegate.cluster.figures import FigureReports, Figures
from tidegate.cluster.placement import Preferred
from tidegate.cluster.resource_configs import BROKER as BROKER_CONFIGS
from tidegate.cluster.resource_configs import ResourceConfigs
from tidegate.cluster.server_check import check_server
from tidegate.diagnosis.state_log import StateLog
from tidegate.errors import StoreUnavailable
from tidegate.groups import retention as offsets_retention
from tidegate.groups.consumer.heartbeats import ConsumerHeartbeats
from tidegate.groups.delayed_heartbeats import DelayedHeartbeats
from tidegate.groups.expiry import CONSUMER_KIND, GroupExpiry
from tidegate.groups.generation_guard import GenerationGuard
from tidegate.groups.heartbeats import Heartbeats
from tidegate.groups.offsets import Offsets
from tidegate.groups.share import offsets as share_offsets
from tidegate.groups.waiting import GroupWaits
from tidegate.host import REPORT_INTERVAL_MS, HostProcess
from tidegate.http.health import Health
from tidegate.log.logs import Logs
from tidegate.log.mirror import Mirror
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.monitoring.internal_topics.services import internal_topics
from tidegate.monitoring.usage_reports import UsageReports
from tidegate.process import LoopLag, ProcessUse
from tidegate.protocol import consumer_blobs
from tidegate.quotas.leases import QuotaLeases
from tidegate.quotas.table import Quotas
from tidegate.sampled_metrics import lag_sampler, sample_broker, sample_client_metrics, sample_host
from tidegate.security.authorizer import may_describe
from tidegate.security.security import Security
from tidegate.server.checked_apis import checked_apis
from tidegate.server.listener import Server
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.addresses import without_password
from tidegate.store.memory_pressure import MEASURE_INTERVAL_MS
from tidegate.store.store import Store
from tidegate.telemetry import logs as logging_setup
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics.catalog import Catalog, PartitionStorage
from tidegate.topics.dynamic_defaults import dynamic_synonyms
from tidegate.topics.model import Topic
from tidegate.transactions.producers import ProducerIds
from tidegate.transactions.sweep import TransactionSweep

logger = structlog.get_logger()

_HINT_PERIODS: Final = 2
"""Lease renewals that other brokers get to observe a drain before clients are redirected to them."""
_PREPARE_AFTER_S: Final = 1.0
"""Requests of clients that were waiting for the start are served first."""


class Service(Protocol):
    """A component that runs in the background."""

    async def start(self) -> None:
        """Start; a failed start is closed too."""

    async def close(self) -> None:
        """Stop."""


NewServer = Callable[[BrokerContext, dict[int, registry.Api], Settings], Server]


def build(
    settings: Settings,
    store: Store,
    endpoints: Endpoints,
    clock: Callable[[], float] = perf_counter,
    *,
    new_server: NewServer = Server,
    use: ProcessUse | None = None,
    host: HostProcess | None = None,
) -> Broker:
    """Create the components of a broker and connect them; open no port, send nothing. Needs a running event loop.

    `endpoints` are the advertised addresses. `clock` is monotonic, in seconds: by it the lease and a drain end. `host`
    is given to one of several processes of a host.
    Raises CannotStart if the archive cannot be opened.
    """
    apis = registry.load_all()  # the store loads the scripts that the imported API modules declare
    return Broker(settings, store, endpoints, clock, apis, new_server, use or ProcessUse(), host)


class Broker:
    """`start`, then `serve` once the ports are open, then `drain` or `close`; each called once."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        endpoints: Endpoints,
        clock: Callable[[], float],
        apis: dict[int, registry.Api],
        new_server: NewServer,
        use: ProcessUse,
        host: HostProcess | None = None,
    ) -> None:
        settings = settings.model_copy()  # each broker of a process has configs of its own at run time
        self.settings, self.store = settings, store
        self.drain_asked = asyncio.Event()
        self._clock, self._use, self._lag, self._host = clock, use, LoopLag(), host
        self.lease = lease = BrokerLease(
            store, settings, endpoints, settings.rack, "starting", clock=clock, events=self._lease_events()
        )
        self._preferred = Preferred(lease, settings.coordinator_shards)
        self.generation_guard = guard = GenerationGuard(store, lease.name)
        self.catalog = Catalog(
            store,
            settings,
            PartitionStorage(create_partition, delete_partition),
            self._forget_offsets,
            on_removed=self._topic_removed,
        )
        self.logs = Logs(store, settings, self.catalog.get, guard.on_failover_handled, self.catalog.refresh)
        heartbeats = Heartbeats(store, settings, lease.name, clock, self._preferred.coordinates)
        consumers = ConsumerHeartbeats(
            store,
            settings,
            self.catalog,
            consumer_blobs,
            lease.name,
            lambda: lease.ends_ms,
            self.logs.durability.prover,
            heartbeats.snapshots,
        )
        self._delays = DelayedHeartbeats(store, settings, heartbeats) if settings.heartbeat_delay_max_ms else None
        self._resource_configs = configs = ResourceConfigs(store, settings)
        configs.on_changed.append(self._apply_configs)
        self._mirror, self._security = Mirror(store, settings), Security(store, settings)
        self._leases = QuotaLeases(store, Quotas(store, settings, self._quotas_changed), lease.process)
        self.context = BrokerContext(
            settings=settings,
            store=store,
            broker_lease=lease,
            catalog=self.catalog,
            logs=self.logs,
            waits=GroupWaits(store, settings, lease.name, guard.apply_status, lambda: lease.ends_ms),
            heartbeats=heartbeats,
            offsets=Offsets(store, lease.name, lambda: lease.ends_ms, self.logs.durability.prover),
            consumers=consumers,
            producer_ids=ProducerIds(store, settings),
            usage=self.logs.usage,
            mirror=self._mirror,
            delayed_heartbeats=self._delays,
            security=self._security,
            quotas=self._leases,
            resource_configs=configs,
            audit=AuditTrail.of(store, settings, lease.name),
            ask_to_drain=self._admin_asked_to_drain,
        )
        for queue in (consumers.groups, self.context.streams):
            queue.on_stored.append(guard.apply_write)
        self.expiry = GroupExpiry(
            store,
            self._preferred.coordinates,
            lease.name,
            {CONSUMER_KIND: consumers.groups.expire, **self.context.expirers},
        )
        if self._security.authorizer is not None:
            consumers.groups.topics.may_describe = partial(may_describe, self._security.authorizer)
        self.server = new_server(self.context, checked_apis(apis, self.context, self._security.authorizer), settings)
        self.context.stalls = self.server.stalls
        self._security.rules.on_changed.append(self.server.forget_repeated_requests)
        self.health = Health(
            lambda: store.available, lambda: lease.valid, lambda: not self.server.request_bytes.exhausted
        )
        self.health.loop_lag_s = lambda: self._lag.worst_s
        self.health.runs_functions = lambda: store.loaded_scripts.are_functions
        if host is not None:
            self.health.others_not_ready = host.others_not_ready
        self._lag_sampler = lag_sampler(store, settings, self.catalog, lease)
        self._served_as = -1
        self._closing, self._loops = AsyncExitStack(), BackgroundTasks()

    def _lease_events(self) -> LeaseEvents:
        return LeaseEvents(
            on_held=self._lease_held,
            on_unsure=self._lease_unsure,
            on_lost=self._lease_lost,
            on_silent=self._broker_silent,
            on_broker_joined=lambda joined: self.server.spreading.on_broker_joined(joined),
            on_drain_asked=lambda: self.ask_to_drain("drain request"),
        )

    def _broker_silent(self, lost: BrokerInfo) -> None:
        self.expiry.broker_silent(self._preferred.taken_from(lost))
        self._lag_sampler.notes_lost()

    def _apply_configs(self) -> None:
        """Take over what administrators set for this broker, and for all."""
        stored = self._resource_configs
        own = stored.of(BROKER_CONFIGS, str(self.lease.node_id))
        dynamic = dynamic_synonyms(own, stored.of(BROKER_CONFIGS, ""))
        if dynamic != self.settings.dynamic_configs:
            self.settings.set_dynamic_configs(dynamic)
            self.catalog.apply_defaults()

    def _services(self) -> list[Service]:
        """What runs in the background once generations are safe to use, in the order of its start."""
        store, settings, lease, preferred = self.store, self.settings, self.lease, self._preferred
        context = self.context
        services: list[Service] = [context.waits, context.heartbeats, context.consumers, context.streams]
        services += [context.shares] if self._delays is None else [context.shares, self._delays]
        forget = partial(forget_mirrors, self.context)
        return [
            *services,
            StateLog(store, preferred.coordinates),
            TransactionSweep(store, self.context.transactions, preferred.coordinates),
            self.expiry,
            offsets_retention.Retention(store, settings, preferred.shards, lease.name, forget),
            self._lag_sampler,
            *internal_topics(store, settings, self.catalog, self.logs, context.transactions.records, preferred.leads),
        ]

    # -- start

    async def start(self) -> None:
        """Take a lease and start every component but the server. Raises CannotStart, StoreUnavailable, TimeoutError."""
        store, settings = self.store, self.settings
        await self._start_store()
        await self._started(self.lease)
        logging_setup.bind(node_id=self.lease.node_id)
        usage = UsageReports(store, settings, self.logs.usage, self._preferred_topics, self.lease.name)
        if self.context.audit is not None:
            await self._started(self.context.audit)
        first: tuple[Service, ...] = (
            self._resource_configs,
            self.catalog,
            self._security,
            self._leases,
            self._leases.quotas,
            self.server.limit_orgs(self._leases.quotas, self.lease.process),
            self.logs,
            self._mirror,
            usage,
        )
        for service in (*first, self.generation_guard):
            await self._started(service)
        await self.generation_guard.skip_lost_generations(await self.logs.failover_epochs.ready())
        for service in self._services():
            await self._started(service)
        self._closing.push_async_callback(self.server.close)

    async def serve(self) -> None:
        """The ports are open: publish the lease, and report figures. Raises StoreUnavailable."""
        await self.lease.serve()
        self.health.listening = True
        await self._started(FigureReports(self.store, lambda: self.lease.node_id, self._figures))
        sample_client_metrics(self.context.client_metrics)
        sample_broker(self.store, self.lease, self.health, self._lag, self._delays)
        self._loops.run("loop-lag", self._lag.measure)
        self._loops.every("redis-memory", MEASURE_INTERVAL_MS, self.context.memory_pressure.measure)
        sample_host(self._host, self.health)
        if self._host is not None:
            await self._report_to_host()
            self._loops.every("host_process", REPORT_INTERVAL_MS, self._report_to_host)

    async def _report_to_host(self) -> None:
        assert self._host is not None
        self._host.report(not self.health.own_reasons())

    async def prepare(self) -> None:
        """Create the routes of the group APIs in a thread: creating one at its first request blocks the event loop."""
        await asyncio.sleep(_PREPARE_AFTER_S)
        for api in registry.served.values():
            if api.prepared:
                await asyncio.to_thread(self.server.routes.prepare, api.key)

    async def _start_store(self) -> None:
        self._closing.push_async_callback(self.store.close)
        try:
            await self.store.start()
        except StoreUnavailable as error:
            url = without_password(self.settings.redis_url)
            raise CannotStart(f"Redis is not reachable at {url}: {error}") from None
        await check_server(self.store, self.settings)

    async def _started(self, service: Service) -> None:
        self._closing.push_async_callback(service.close)  # before the start: a failed start is closed too
        await service.start()

    # -- events of the components

    def _quotas_changed(self) -> None:
        self._leases.forget_limits()
        self.server.meter(self._leases if self._leases.quotas.table.has_rates else None)

    async def _forget_offsets(self, org: str, topic: str, topic_id: UUID, partition_count: int) -> None:
        await offsets_retention.forget_topic(self.store, org, topic, partition_count, topic_id.hex)
        await share_offsets.forget_topic(self.store, org, topic_id, partition_count)

    def _topic_removed(self, topic: Topic) -> None:
        self.logs.forget_topic(topic)

    def _preferred_topics(self) -> list[Topic]:
        """Topics whose first partition this broker leads: exactly one broker reports the usage of each topic."""
        return [topic for topic in self.catalog.all_topics() if self._preferred.leads(topic.topic_id, 0)]

    def _lease_lost(self) -> None:
        """Another broker may hold this node id now: discard cached log state. BrokerLease acquires a new lease."""
        if self._delays is not None:
            self._delays.release_all()
        self.server.suspend()
        self.logs.drop_states()

    def _lease_held(self, left_s: float) -> None:
        """Serve. After a change of the node id close all connections, so that clients refresh their metadata."""
        node_id = self.lease.node_id
        if node_id != self._served_as:
            self.server.refuse()
            logging_setup.bind(node_id=node_id)
            self._apply_configs()
            self._served_as = node_id
        self.server.serve(left_s)

    def _lease_unsure(self) -> None:
        """Redis did not renew the lease. Until the lease has expired, serve and reply with retriable errors."""
        if self.lease.held:
            self.server.go_on_without_redis(self.lease.ends_s - self._clock())
        else:
            self.server.refuse()

    def _figures(self) -> Figures:
        return Figures(
            self.lease.process,
            round(self._use.uptime_s, 1),
            len(self.server.connections),
            round(self._lag.worst_s * 1000, 1),
            round(self._use.cpu_share(), 3),
            self._use.memory_bytes(),
        )

    # -- shutdown

    def ask_to_drain(self, by: str) -> None:
        """Drain and exit as on SIGTERM; `by` is for the log. May be called repeatedly."""
        if not self.drain_asked.is_set():
            logger.info("asked_to_drain", by=by)
            self.drain_asked.set()

    def _admin_asked_to_drain(self, by: str) -> None:
        """The admin HTTP that answers for a host drains all of its processes."""
        if self._host is not None and self._host.is_first and not self.drain_asked.is_set():
            self._host.drain_host()
        self.ask_to_drain(by)

    async def drain(self) -> None:
        """Move clients to other brokers within `shutdown_timeout_ms`, without a rebalance of any group.

        The broker becomes not ready and marks its lease as draining, so that others no longer name it; then it answers
        long polls and closes connections one by one. Joins and syncs stay parked until then; members remain in Redis.
        """
        settings = self.settings
        ends_s = self._clock() + settings.shutdown_timeout_ms / 1000
        logger.info("draining", connections=len(self.server.connections), budget_ms=settings.shutdown_timeout_ms)
        self.health.draining = True
        try:
            async with asyncio.timeout(settings.shutdown_timeout_ms / 4000):
                await self.lease.drain()
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("drain_not_announced", reason=str(error) or "no answer from Redis")
        hint_ms = settings.broker_lease_renew_ms * _HINT_PERIODS if self.server.connections else 0
        await asyncio.sleep(min(max(hint_ms, settings.drain_notice_ms), settings.shutdown_timeout_ms / 4) / 1000)
        await self.server.drain(max(0, int((ends_s - self._clock()) * 1000)))
        self.health.listening = False
        logger.info("drained")

    async def close(self) -> None:
        """Stop all components in the reverse order of the start, and release the lease."""
        await self._loops.close()
        await self._closing.aclose()
