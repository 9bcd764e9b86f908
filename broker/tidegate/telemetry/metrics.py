"""The metrics of one broker and their exposition for scrapers.

Recording changes plain integers only; Prometheus objects are created when `/metrics` is scraped. Writers:
`server/pending_request.py` records requests and errors, `store/store.py` scripts, `server/` connections and bytes;
links, leases and the rest are sampled at each scrape (`Metrics.sample`). The cluster's metrics are a page of text,
created once per round by `monitoring/cluster_metrics.py`; a scrape only copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from tidegate.telemetry import declared, software
from tidegate.telemetry.declared import Declared
from tidegate.telemetry.meters import BARRIER_BOUNDS_S, ApiMeter, Meter

_SERVER_ERROR: Final = ErrorCode.unknown_server_error.name

Samples = Callable[[], Mapping[tuple[str, ...], float]]
"""Label values -> current value of a metric; `()` for a metric without labels."""

_END: Final = b"# EOF\n"


class Metrics(Collector):
    """Counters of one broker. `apis[key]` and `script(name)` are meters; the rest are plain ints."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMeter] = {key: ApiMeter() for key in api_key_map}
        self.scripts: dict[str, Meter] = {}
        self.held: dict[str, Meter] = {}
        self.archive_reads: dict[str, Meter] = {}
        self.throttles: dict[str, Meter] = {}
        self.barriers = {phase: Meter(BARRIER_BOUNDS_S) for phase in ("join", "sync")}
        self.rebalances: dict[str, int] = {}
        self.heartbeats_answered = 0
        """From snapshots."""
        self.connections_opened = 0
        self.connections_refused = 0
        self.connections_rebalanced = 0
        self.tls_failures = 0
        self.authentications = self.authentications_failed = 0
        self.audit_events = self.audit_events_dropped = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.loops_failed = 0
        self.cluster_page: Callable[[], Sequence[bytes]] = list
        """Returns the page of cluster metrics; empty on brokers without the exporter's lease."""
        self._samples: dict[Declared, Samples] = {}

    def script(self, label: str) -> Meter:
        """The meter of a script, by its label (`Script.label`)."""
        return self._meter(self.scripts, label)

    def hold(self, reason: str) -> Meter:
        """The meter of delayed heartbeats, by the reason of their release."""
        return self._meter(self.held, reason)

    def archived_reads(self, source: str) -> Meter:
        """The meter of reads below the local start, by source: `cache` or `archive`."""
        return self._meter(self.archive_reads, source)

    def throttled(self, quota: str) -> Meter:
        """The meter of throttle times, by the quota that was used up."""
        return self._meter(self.throttles, quota)

    @staticmethod
    def _meter(meters: dict[str, Meter], label: str) -> Meter:
        found = meters.get(label)
        if found is None:
            found = meters[label] = Meter()
        return found

    def sample(self, metric: Declared, values: Samples) -> None:
        """Call `values` for a gauge or counter at every scrape."""
        self._samples[metric] = values

    def collect(self) -> Iterable[Metric]:
        """All metrics of this broker as Prometheus metric families."""
        yield from self._requests()
        yield _histogram(declared.SCRIPT_SECONDS, self.scripts)
        yield _histogram(declared.DELAYED_SECONDS, self.held)
        yield _histogram(declared.ARCHIVE_READ_SECONDS, self.archive_reads)
        yield _histogram(declared.BARRIER_SECONDS, self.barriers)
        yield _histogram(declared.THROTTLE_SECONDS, self.throttles)
        yield _family(declared.REBALANCES, {(cause,): count for cause, count in self.rebalances.items()})
        for metric, value in (
            (declared.HEARTBEATS_ANSWERED, self.heartbeats_answered),
            (declared.CONNECTIONS_OPENED, self.connections_opened),
            (declared.CONNECTIONS_REFUSED, self.connections_refused),
            (declared.CONNECTIONS_SPREAD, self.connections_rebalanced),
            (declared.TLS_FAILURES, self.tls_failures),
            (declared.AUTHENTICATIONS, self.authentications),
            (declared.AUTHENTICATIONS_FAILED, self.authentications_failed),
            (declared.AUDIT_EVENTS, self.audit_events),
            (declared.AUDIT_EVENTS_DROPPED, self.audit_events_dropped),
            (declared.BYTES_IN, self.bytes_in),
            (declared.BYTES_OUT, self.bytes_out),
            (declared.LOOPS_FAILED, self.loops_failed),
        ):
            yield _family(metric, {(): value})
        for metric, values in self._samples.items():
            yield _family(metric, values())

    def _requests(self) -> Iterable[Metric]:
        used = {api_key_map[key]: api for key, api in self.apis.items() if api.versions or api.errors}
        yield _histogram(declared.REQUEST_SECONDS, {name: api.together for name, api in used.items()})
        yield _family(
            declared.REQUESTS,
            {
                (name, str(version)): meter.count
                for name, api in used.items()
                for version, meter in api.versions.items()
            },
        )
        errors: dict[tuple[str, ...], float] = {
            (api_key_map[key], _SERVER_ERROR): 0 for key in self.apis
        }  # `increase` ignores the first value of a series: each has one before the first failure
        errors |= {(name, error_name(code)): count for name, api in used.items() for code, count in api.errors.items()}
        yield _family(declared.REQUEST_ERRORS, errors)
        clients = [one for one in software.every() if one.requests or one.connections]
        yield _family(declared.CLIENT_REQUESTS, {(one.name,): one.requests for one in clients})
        yield _family(declared.CLIENT_CONNECTIONS, {(one.name,): one.connections for one in clients})


def _histogram(metric: Declared, meters: Mapping[str, Meter]) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for label, meter in meters.items():
        if meter.count:
            family.add_metric((label,), meter.buckets(), meter.total_s)
    return family


def _family(metric: Declared, values: Mapping[tuple[str, ...], float]) -> Metric:
    family_of = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = family_of(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def error_name(code: int) -> str:
    """Kafka's name of an error code; unknown codes are `other`."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return "other"


metrics: Final = Metrics()
"""The metrics of this process; a process runs one broker."""

_registry: Final = CollectorRegistry(auto_describe=False)
_registry.register(metrics)
ProcessCollector(registry=_registry)


def exposition(accept: str) -> tuple[list[bytes], str]:
    """The body of `/metrics` in chunks and its content type: OpenMetrics if `accept` asks for it, or Prometheus text.

    The cluster page contains gauges only, whose lines are equal in both formats.
    """
    encode, content_type = choose_encoder(accept)
    text = encode(_registry)
    end = _END if text.endswith(_END) else b""
    return [text.removesuffix(end), *metrics.cluster_page(), end], content_type
