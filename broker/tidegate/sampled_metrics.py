"""Metrics of a broker that are read from its components at each scrape."""

from __future__ import annotations

from collections.abc import Callable

import tidegate
from tidegate.cluster.broker_lease import BrokerLease
from tidegate.groups.delayed_heartbeats import DelayedHeartbeats
from tidegate.host import HostProcess
from tidegate.http.health import Health
from tidegate.monitoring.cluster_metrics import ClusterPage
from tidegate.monitoring.exporters import Brokers, ForeignNames
from tidegate.monitoring.lag_sampler import HANDOVER_MS, LagSampler
from tidegate.process import LoopLag
from tidegate.protocol import consumer_blobs
from tidegate.settings import Settings
from tidegate.store.link import Link
from tidegate.store.store import Store
from tidegate.telemetry import declared
from tidegate.telemetry.client_metrics import ClientMetrics
from tidegate.telemetry.metrics import metrics
from tidegate.topics.catalog import Catalog


def sample_broker(
    store: Store, lease: BrokerLease, health: Health, lag: LoopLag, delays: DelayedHeartbeats | None
) -> None:
    """Register the broker's own values. A lane to several primaries is up when all of its links are."""

    def of_lanes(value: Callable[[list[Link]], float]) -> dict[tuple[str, ...], float]:
        return {(name,): value(links) for name, links in store.lanes().items()}

    metrics.sample(declared.LINK_UP, lambda: of_lanes(lambda links: float(all(one.connected for one in links))))
    metrics.sample(declared.LINK_IN_FLIGHT, lambda: of_lanes(lambda links: sum(one.in_flight for one in links)))
    metrics.sample(declared.LINK_CONNECTS, lambda: of_lanes(lambda links: sum(one.failover_epoch for one in links)))
    metrics.sample(declared.FUNCTIONS_LOADED, lambda: {(): float(store.loaded_scripts.are_functions)})
    metrics.sample(declared.CLOCK_DIFFERENCE_SECONDS, lambda: {(): (store.clock.difference_ms or 0) / 1000})
    metrics.sample(declared.LIVE_BROKERS, lambda: {(): len(lease.live())})
    metrics.sample(declared.READY, lambda: {(): float(health.ready)})
    metrics.sample(declared.DRAINING, lambda: {(): float(health.draining)})
    metrics.sample(declared.BUILD, lambda: {(tidegate.__version__,): 1})
    metrics.sample(declared.LOOP_LAG_SECONDS, lambda: {(): lag.worst_s})
    metrics.sample(declared.LOOP_STALL_MAX_SECONDS, lambda: {(): lag.longest_s})
    if delays is not None:
        metrics.sample(declared.HEARTBEATS_DELAYED, lambda: {(): delays.held})


def sample_client_metrics(pushed: ClientMetrics) -> None:
    """Register what clients push (KIP-714)."""
    metrics.sample(declared.CLIENT_METRIC_SUM, pushed.sums)
    metrics.sample(declared.CLIENT_METRIC_COUNT, pushed.counts)


def sample_host(host: HostProcess | None, health: Health) -> None:
    """Register the values of the host at the first of its processes, which may be the only one (`host` is None)."""
    if host is None:
        metrics.sample(declared.HOST_PROCESSES_READY, lambda: {(): float(health.ready)})
        metrics.sample(declared.HOST_RESTARTS, lambda: {(): 0})
    elif host.is_first:
        metrics.sample(declared.HOST_PROCESSES_READY, lambda: {(): host.ready_count()})
        metrics.sample(declared.HOST_RESTARTS, lambda: {(): host.page.restarts})


def lag_sampler(store: Store, settings: Settings, catalog: Catalog, lease: BrokerLease) -> LagSampler:
    """The sampler of lag, with the page of cluster metrics, which the holder of the sampler's lease exports."""
    brokers = Brokers(lease.live, lease.preferred, lambda: lease.cluster_id)
    foreign = ForeignNames(brokers, catalog.get)
    page = ClusterPage(store, settings, catalog.all_topics, foreign)
    sampler = LagSampler(
        store, settings, catalog.get, consumer_blobs.assigned_partitions, lease.name, page, handover_ms=HANDOVER_MS
    )
    exporting = sampler.singleton_lease

    def is_exported() -> bool:
        return exporting.is_past_handover and page.is_current

    metrics.cluster_page = lambda: page.text if is_exported() else ()
    metrics.sample(declared.CLUSTER_EXPORTED, lambda: {(): float(is_exported())})
    metrics.sample(declared.LAG_SAMPLES, lambda: {(): sampler.taken})
    metrics.sample(declared.LAG_ROUND_SECONDS, lambda: {(): sampler.round_s})
    return sampler
