"""One broker: creates the components; starts, drains and stops them in order.

The process keeps no durable state: everything that must survive is in Redis.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog
import uvloop

import tidegate
from tidegate.admin.health import Health
from tidegate.admin.routes import AdminServer
from tidegate.apis import registry
from tidegate.apis.call import BrokerContext
from tidegate.apis.mirroring import forget_mirrors
from tidegate.apis.registry import ApiKey
from tidegate.cluster.addresses import Endpoints
from tidegate.cluster.broker_lease import BrokerInfo, BrokerLease
from tidegate.cluster.figures import FigureReports, Figures
from tidegate.cluster.placement import coordinator_of, leader_of
from tidegate.cluster.server_check import check_server
from tidegate.errors import CannotStart, StoreUnavailable
from tidegate.groups import retention as offsets_retention
from tidegate.groups.cluster_page import ClusterPage
from tidegate.groups.delayed_heartbeats import DelayedHeartbeats
from tidegate.groups.expiry import GroupExpiry
from tidegate.groups.exporter_names import Brokers, ForeignNames
from tidegate.groups.generation_guard import GenerationGuard, bump_all_generations
from tidegate.groups.heartbeats import Heartbeats
from tidegate.groups.lag_samples import LagSampler
from tidegate.groups.offsets import Offsets
from tidegate.groups.state_log import StateLog
from tidegate.groups.waiting import GroupWaits
from tidegate.log.logs import Logs
from tidegate.log.mirror import Mirror
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.log.usage import UsageReports
from tidegate.process import LoopLag, ProcessUse, Signals, bind
from tidegate.protocol.consumer_blobs import assigned_partitions
from tidegate.server.listener import Server
from tidegate.server.ports import Ports
from tidegate.settings import Settings, warn_of_former_settings
from tidegate.store.addresses import without_password
from tidegate.store.link import Link
from tidegate.store.store import Store
from tidegate.telemetry import declared
from tidegate.telemetry import logs as logging_setup
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics
from tidegate.topics.catalog import Catalog, PartitionStorage
from tidegate.topics.model import Topic
from tidegate.tracing import Tracing
from tidegate.transactions.producers import ProducerIds

logger = structlog.get_logger()

_CLOSE_S: Final = 5.0
_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""A tick allocates more objects than the default threshold of 700, and reference counting frees them."""
_HINT_PERIODS: Final = 2
"""Lease renewals that other brokers get to observe a drain before clients are redirected to them."""

_MEMBERS_APIS: Final = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT,
    ApiKey.LEAVE_GROUP,
)
_PREPARE_AFTER_S: Final = 1.0
"""Requests of clients that were waiting for the start are served first."""


class App:
    """One broker process: `start`, then `drain` or `close`, each called once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tracing = Tracing() if settings.tracing else None
        self.store = Store(settings) if self.tracing is None else self.tracing.store(settings)
        self.health = Health(lambda: self.store.available, lambda: self.broker_lease.held)
        self.loops = BackgroundTasks()
        self.lag = LoopLag()
        self.use = ProcessUse()
        self.drain_asked = asyncio.Event()
        self.broker_lease: BrokerLease
        self.context: BrokerContext
        self.server: Server
        self._served_as = -1
        self._closing = AsyncExitStack()

    # -- start

    async def start(self) -> None:
        """Start every component in order. Raises CannotStart."""
        settings = self.settings
        ports = Ports(settings, bind)
        admin_socket = bind(settings.admin_host, settings.admin_port, "TIDEGATE_ADMIN_PORT")
        apis = registry.load_all()  # the store loads the scripts that the imported API modules declare
        try:
            await self._start_store()
            await self._start_membership(ports.advertised())
            await self._start_services()
            await self._open(apis, ports)
            figures = FigureReports(self.store, lambda: self.broker_lease.node_id, self._figures)
            await self._started(figures.start(), figures.close)
            await self._start_admin(admin_socket)
        except (StoreUnavailable, TimeoutError) as error:
            raise CannotStart(f"Redis is not usable at {self._address()}: {error or 'no answer'}") from None
        finally:
            ports.close()
        self._measure()
        gc.collect()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.freeze()  # exclude long-lived objects from further collections
        logger.info("ready", port=ports.numbers[0], version=tidegate.__version__)

    async def prepare(self) -> None:
        """Create the routes of the group APIs in a thread: creating one at its first request blocks the event loop."""
        await asyncio.sleep(_PREPARE_AFTER_S)
        for api_key in _MEMBERS_APIS:
            await asyncio.to_thread(self.server.routes.prepare, api_key)

    async def _start_store(self) -> None:
        self._closing.push_async_callback(self.store.close)
        try:
            await self.store.start()
        except StoreUnavailable as error:
            raise CannotStart(f"Redis is not reachable at {self._address()}: {error}") from None
        await check_server(self.store, self.settings)

    async def _start_membership(self, endpoints: Endpoints) -> None:
        settings = self.settings
        self.broker_lease = BrokerLease(self.store, settings, endpoints, settings.rack, "starting")
        self.broker_lease.on_drain_asked.append(partial(self.ask_to_drain, "drain request"))
        await self._started(self.broker_lease.start(), self.broker_lease.close)
        logging_setup.bind(node_id=self.broker_lease.node_id)

    async def _start_services(self) -> None:
        store, settings, broker_lease = self.store, self.settings, self.broker_lease
        catalog = Catalog(store, settings, PartitionStorage(create_partition, delete_partition), self._forget_offsets)
        logs = Logs(store, settings, catalog.get)
        catalog.on_removed.append(logs.forget_topic)
        self.context = BrokerContext(
            settings=settings,
            store=store,
            broker_lease=broker_lease,
            catalog=catalog,
            logs=logs,
            waits=GroupWaits(store, settings, self._name),
            heartbeats=Heartbeats(store, settings, self._name),
            offsets=Offsets(store, settings, self._name, lambda: broker_lease.ends_ms),
            producer_ids=ProducerIds(store, settings),
            usage=logs.usage,
            ask_to_drain=self.ask_to_drain,
        )
        await self._started(catalog.start(), catalog.close)
        await self._started(logs.start(), logs.close)
        mirror = self.context.mirror = Mirror(store, settings)
        await self._started(mirror.start(), mirror.close)
        reports = UsageReports(store, settings, logs.usage, self._preferred_topics, self._name)
        await self._started(reports.start(), reports.close)
        await self._follow_generations(logs)
        await self._started(self.context.waits.start(), self.context.waits.close)
        if settings.heartbeat_delay_max_ms:
            delays = self.context.delayed_heartbeats = DelayedHeartbeats(store, settings, self.context.heartbeats)
            broker_lease.on_lost.append(delays.release_all)
            metrics.sample(declared.HEARTBEATS_DELAYED, lambda: {(): delays.held})
            await self._started(delays.start(), delays.close)
        states = StateLog(store, self._prefers)
        await self._started(states.start(), states.close)
        expiry = GroupExpiry(store, self._prefers, self._name)
        await self._started(expiry.start(), expiry.close)
        broker_lease.on_silent.append(lambda lost: expiry.broker_silent(self._named_before(lost)))
        sweep = offsets_retention.Retention(
            store, settings, self._preferred_shards, self._name, partial(forget_mirrors, self.context)
        )
        await self._started(sweep.start(), sweep.close)
        sampler = self._lag_sampler(catalog)
        await self._started(sampler.start(), sampler.close)

    def _lag_sampler(self, catalog: Catalog) -> LagSampler:
        """Create the sampler of lag, and the exporter of cluster metrics that runs with it."""
        store, settings, broker_lease = self.store, self.settings, self.broker_lease
        brokers = Brokers(broker_lease.live, broker_lease.preferred, lambda: broker_lease.cluster_id)
        foreign = ForeignNames(settings.metrics_exporter_names, brokers, catalog.get)
        page = ClusterPage(store, settings, catalog.all_topics, foreign)
        sampler = LagSampler(store, settings, catalog.get, assigned_partitions, self._name, page)
        metrics.cluster_page = lambda: page.text if sampler.singleton_lease.is_past_handover else ()
        metrics.sample(declared.CLUSTER_EXPORTED, lambda: {(): float(sampler.singleton_lease.is_past_handover)})
        metrics.sample(declared.LAG_SAMPLES, lambda: {(): sampler.taken})
        metrics.sample(declared.LAG_ROUND_SECONDS, lambda: {(): sampler.round_s})
        return sampler

    async def _follow_generations(self, logs: Logs) -> None:
        """Keep generations unique although Redis may lose writes in a fail-over, now or later."""
        generation_guard = GenerationGuard(self.store, self._name)
        await self._started(generation_guard.start(), generation_guard.close)
        self.context.waits.on_status.append(generation_guard.apply_status)
        generation_guard.failover_epoch = await logs.failover_epochs.ready()
        raised = await bump_all_generations(self.store, generation_guard.failover_epoch, self._name())
        if raised:
            logger.warning("generations_bumped", groups=raised)
        logs.failover_epochs.on_assigned.append(generation_guard.on_failover_handled)

    async def _started(self, starting: Awaitable[None], close: Callable[[], Awaitable[None]]) -> None:
        self._closing.push_async_callback(close)  # before the start: a failed start is closed too
        await starting

    async def _open(self, apis: dict[int, registry.Api], ports: Ports) -> None:
        self.server = Server(self.context, apis, self.settings)
        self.health.requests_admitted = lambda: not self.server.request_bytes.exhausted
        if self.tracing is not None:
            self.tracing.trace(self.server)
        self._served_as = self.broker_lease.node_id
        self.broker_lease.on_lost.append(self._lease_lost)
        self.broker_lease.on_held.append(self._lease_held)
        self.broker_lease.on_unsure.append(self._lease_unsure)
        self.broker_lease.on_broker_joined_listeners.append(self.server.spreading.on_broker_joined)
        self._lease_held()
        self._closing.push_async_callback(self.server.close)
        await ports.open(self.server)
        if ports.certificates is not None:
            self.loops.run("certificates", ports.certificates.watch)
        await self.broker_lease.serve()
        self.health.listening = True

    async def _start_admin(self, admin_socket: socket.socket) -> None:
        admin = AdminServer(self.health, admin_socket, self.context)
        try:
            await self._started(admin.start(), admin.close)
        except OSError as error:
            raise CannotStart(f"cannot listen for admin HTTP (TIDEGATE_ADMIN_PORT): {error.strerror}") from None

    def _address(self) -> str:
        return without_password(self.settings.redis_url)

    # -- callbacks between components

    def _prefers(self, shard: int) -> bool:
        """Whether this broker is the preferred coordinator of a shard of groups."""
        return coordinator_of(shard, self.broker_lease.preferred()).node_id == self.broker_lease.node_id

    def _named_before(self, lost: BrokerInfo) -> Callable[[int], bool]:
        """Whether a broker whose lease expired was the preferred coordinator of a shard."""
        brokers = [*self.broker_lease.preferred(), lost]
        return lambda shard: coordinator_of(shard, brokers) is lost

    def _preferred_shards(self) -> list[int]:
        return [shard for shard in range(self.settings.coordinator_shards) if self._prefers(shard)]

    def _preferred_topics(self) -> list[Topic]:
        """Topics whose first partition this broker leads: exactly one broker reports the usage of each topic."""
        brokers, own = self.broker_lease.preferred(), self.broker_lease.node_id
        return [one for one in self.context.catalog.all_topics() if leader_of(one.topic_id, 0, brokers).node_id == own]

    async def _forget_offsets(self, org: str, topic: str, topic_id: UUID, partition_count: int) -> None:
        await offsets_retention.forget_topic(self.store, org, topic, partition_count, topic_id.hex)

    def _name(self) -> str:
        """The name of this broker in events."""
        return str(self.broker_lease.node_id)

    def _lease_lost(self) -> None:
        """Another broker may hold this node id now: discard cached log state. BrokerLease acquires a new lease."""
        self.server.suspend()
        self.context.logs.drop_views()

    def _lease_held(self) -> None:
        """Serve. After a change of the node id close all connections, so that clients refresh their metadata."""
        node_id = self.broker_lease.node_id
        if node_id != self._served_as:
            self._served_as = node_id
            logging_setup.bind(node_id=node_id)
            self.server.refuse()
        self.server.serve(self.broker_lease.ends_s)

    def _lease_unsure(self) -> None:
        """Redis did not renew the lease. Until the lease has expired, serve and reply with retriable errors."""
        if self.broker_lease.held:
            self.server.go_on_without_redis(self.broker_lease.ends_s)
        else:
            self.server.refuse()

    # -- sampled metrics

    def _figures(self) -> Figures:
        return Figures(
            self.broker_lease.process,
            round(self.use.uptime_s, 1),
            len(self.server.connections),
            round(self.lag.worst_s * 1000, 1),
            round(self.use.cpu_share(), 3),
            self.use.memory_bytes(),
        )

    def _measure(self) -> None:
        """Register values sampled at each scrape. A lane to several primaries is up when all of its links are."""

        def of_lanes(value: Callable[[list[Link]], float]) -> dict[tuple[str, ...], float]:
            return {(name,): value(links) for name, links in self.store.lanes().items()}

        health, broker_lease = self.health, self.broker_lease
        metrics.sample(declared.LINK_UP, lambda: of_lanes(lambda links: float(all(one.connected for one in links))))
        metrics.sample(declared.LINK_IN_FLIGHT, lambda: of_lanes(lambda links: sum(one.in_flight for one in links)))
        metrics.sample(declared.LINK_CONNECTS, lambda: of_lanes(lambda links: sum(one.failover_epoch for one in links)))
        metrics.sample(declared.CLOCK_DIFFERENCE_SECONDS, lambda: {(): (self.store.clock.difference_ms or 0) / 1000})
        metrics.sample(declared.LIVE_BROKERS, lambda: {(): len(broker_lease.live())})
        metrics.sample(declared.READY, lambda: {(): float(health.ready)})
        metrics.sample(declared.DRAINING, lambda: {(): float(health.draining)})
        metrics.sample(declared.BUILD, lambda: {(tidegate.__version__,): 1})
        metrics.sample(declared.LOOP_LAG_SECONDS, lambda: {(): self.lag.worst_s})
        self.loops.run("loop-lag", self.lag.measure)

    # -- shutdown

    def ask_to_drain(self, by: str) -> None:
        """Drain and exit as on SIGTERM; `by` is for the log. May be called repeatedly."""
        if not self.drain_asked.is_set():
            logger.info("asked_to_drain", by=by)
            self.drain_asked.set()

    async def drain(self) -> None:
        """Move clients to other brokers within `shutdown_timeout_ms`, without a rebalance of any group.

        The broker first becomes not ready and marks its lease as draining, so that others no longer name it; then it
        answers long polls and closes connections one by one. Parked joins and syncs wait until the budget ends; the
        members of those then aborted keep their membership in Redis.
        """
        settings, clock = self.settings, asyncio.get_running_loop().time
        ends = clock() + settings.shutdown_timeout_ms / 1000
        logger.info("draining", connections=len(self.server.connections), budget_ms=settings.shutdown_timeout_ms)
        self.health.draining = True
        try:
            async with asyncio.timeout(settings.shutdown_timeout_ms / 4000):
                await self.broker_lease.drain()
        except (StoreUnavailable, TimeoutError) as error:
            logger.warning("drain_not_announced", reason=str(error) or "no answer from Redis")
        hint_ms = settings.lease_renew_ms * _HINT_PERIODS if self.server.connections else 0
        await asyncio.sleep(min(max(hint_ms, settings.drain_notice_ms), settings.shutdown_timeout_ms / 4) / 1000)
        await self.server.drain(max(0, int((ends - clock()) * 1000)))
        self.health.listening = False
        logger.info("drained")

    async def close(self) -> None:
        """Stop all components in the reverse order of the start, and release the lease."""
        await self.loops.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._closing.aclose()
        except TimeoutError:
            logger.warning("not_closed_in_time", seconds=_CLOSE_S)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


async def _run(settings: Settings, unknown: Sequence[str]) -> None:
    signals = Signals()
    logging_setup.bind(pid=os.getpid())
    for variable in unknown:
        logger.warning("unknown_setting", variable=variable)
    warn_of_former_settings()
    app = App(settings)
    starting = asyncio.ensure_future(app.start())
    asked = asyncio.ensure_future(signals.asked.wait())
    running: list[asyncio.Future[Any]] = [starting, asked]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            running.append(asyncio.ensure_future(app.prepare()))
            running.append(ending := asyncio.ensure_future(app.drain_asked.wait()))
            await asyncio.wait([asked, ending], return_when=asyncio.FIRST_COMPLETED)
            await app.drain()  # a SIGTERM during this drain has no further effect
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await app.close()


def serve(settings: Settings, unknown: Sequence[str] = ()) -> None:
    """Run one broker until a signal. `unknown`: variables that look like settings but are none. Raises CannotStart."""
    logging_setup.configure(settings.log_format, settings.log_level)
    uvloop.run(_run(settings, unknown))
