"""Every metric, declared once, and the cheapest way to record it.

Recording touches plain integers only; Prometheus' objects are made when `/metrics` is scraped. An
event loop runs in one thread, so nothing here is locked. Labels come from closed sets (Kafka's APIs and
error codes, the scripts of the package, the links of a broker): no topic, group or client names.

Who records what: `server/dispatch.py` requests and their errors, `store/store.py` scripts, `server/`
connections and bytes; links, leases and the rest are sampled at each scrape (`Metrics.sample`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

BOUNDS_S: Final = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Upper bounds of the latency buckets, seconds; one more bucket has no bound."""

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: its name, kind, meaning, and the names of its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


REQUEST_SECONDS: Final = Declared(
    "tidegate_request_seconds", "histogram", "From a request's last byte read to its answer handed over.", ("api",)
)
REQUEST_ERRORS: Final = Declared(
    "tidegate_request_errors",
    "counter",
    "Answers with a Kafka error code, by API; group APIs count those of members and partitions too.",
    ("api", "error"),
)
SCRIPT_SECONDS: Final = Declared(
    "tidegate_script_seconds", "histogram", "From a script queued for Redis to its reply.", ("script",)
)
HELD_SECONDS: Final = Declared(
    "tidegate_heartbeat_held_seconds",
    "histogram",
    "How long answers to heartbeats were kept back, and why no longer.",
    ("reason",),
)
CONNECTIONS_OPENED: Final = Declared("tidegate_connections_opened", "counter", "Client connections accepted.")
CONNECTIONS_REFUSED: Final = Declared("tidegate_connections_refused", "counter", "Client connections above the cap.")
BYTES_IN: Final = Declared("tidegate_received_bytes", "counter", "Bytes read from clients.")
BYTES_OUT: Final = Declared("tidegate_sent_bytes", "counter", "Bytes written to clients.")
LOOPS_FAILED: Final = Declared("tidegate_background_failures", "counter", "Background loops that failed, restarted.")

CONNECTIONS: Final = Declared("tidegate_connections", "gauge", "Client connections open now.")
LINK_UP: Final = Declared("tidegate_redis_link_up", "gauge", "Whether the link to Redis is up.", ("link",))
LINK_IN_FLIGHT: Final = Declared("tidegate_redis_in_flight", "gauge", "Commands sent and not answered.", ("link",))
LINK_CONNECTS: Final = Declared("tidegate_redis_connects", "counter", "Connections made to Redis.", ("link",))
HEARTBEATS_HELD: Final = Declared("tidegate_heartbeats_held", "gauge", "Answers to heartbeats kept back now.")
LIVE_BROKERS: Final = Declared("tidegate_live_brokers", "gauge", "Brokers that this one lists to clients.")
READY: Final = Declared("tidegate_ready", "gauge", "Whether this broker is ready (see /health/ready).")
LOOP_LAG_SECONDS: Final = Declared("tidegate_loop_lag_seconds", "gauge", "Worst delay of the event loop lately.")

DECLARED: Final = (
    REQUEST_SECONDS,
    REQUEST_ERRORS,
    SCRIPT_SECONDS,
    HELD_SECONDS,
    CONNECTIONS_OPENED,
    CONNECTIONS_REFUSED,
    BYTES_IN,
    BYTES_OUT,
    LOOPS_FAILED,
    CONNECTIONS,
    LINK_UP,
    LINK_IN_FLIGHT,
    LINK_CONNECTS,
    HEARTBEATS_HELD,
    LIVE_BROKERS,
    READY,
    LOOP_LAG_SECONDS,
)


class Meter:
    """Count and duration of one kind of operation. Hold on to it: `observe` is the hot path."""

    __slots__ = ("counts", "errors", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0
        self.errors: dict[int, int] = {}

    def observe(self, seconds: float) -> None:
        """One operation took `seconds`."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def error(self, code: int) -> None:
        """One operation was answered with this Kafka error code (not NONE)."""
        self.errors[code] = self.errors.get(code, 0) + 1

    @property
    def count(self) -> int:
        """Operations so far."""
        return sum(self.counts)


Samples = Callable[[], Mapping[tuple[str, ...], float]]
"""Values of a metric now, by label values; `()` where it has no labels."""


class Metrics(Collector):
    """What one broker has counted. `apis[key]` and `script(name)` are meters; the rest are plain ints."""

    def __init__(self) -> None:
        self.apis: dict[int, Meter] = {key: Meter() for key in api_key_map}
        self.scripts: dict[str, Meter] = {}
        self.held: dict[str, Meter] = {}
        self.connections_opened = 0
        self.connections_refused = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.loops_failed = 0
        self._samples: dict[Declared, Samples] = {}

    def script(self, label: str) -> Meter:
        """The meter of a script, by its label (`Script.label`)."""
        return self._meter(self.scripts, label)

    def hold(self, reason: str) -> Meter:
        """The meter of heartbeats held until `reason` (`groups/holds.Released`)."""
        return self._meter(self.held, reason)

    @staticmethod
    def _meter(meters: dict[str, Meter], label: str) -> Meter:
        found = meters.get(label)
        if found is None:
            found = meters[label] = Meter()
        return found

    def sample(self, declared: Declared, values: Samples) -> None:
        """Ask `values` for a gauge or counter at every scrape."""
        self._samples[declared] = values

    def collect(self) -> Iterable[Metric]:
        """Everything, as Prometheus takes it."""
        yield self._histogram(REQUEST_SECONDS, {api_key_map[key]: meter for key, meter in self.apis.items()})
        errors = CounterMetricFamily(REQUEST_ERRORS.name, REQUEST_ERRORS.help, labels=REQUEST_ERRORS.labels)
        for key, meter in self.apis.items():
            for code, count in meter.errors.items():
                errors.add_metric((api_key_map[key], error_name(code)), count)
        yield errors
        yield self._histogram(SCRIPT_SECONDS, self.scripts)
        yield self._histogram(HELD_SECONDS, self.held)
        for declared, value in (
            (CONNECTIONS_OPENED, self.connections_opened),
            (CONNECTIONS_REFUSED, self.connections_refused),
            (BYTES_IN, self.bytes_in),
            (BYTES_OUT, self.bytes_out),
            (LOOPS_FAILED, self.loops_failed),
        ):
            yield CounterMetricFamily(declared.name, declared.help, value=value)
        for declared, values in self._samples.items():
            yield self._sampled(declared, values())

    @staticmethod
    def _histogram(declared: Declared, meters: Mapping[str, Meter]) -> Metric:
        family = HistogramMetricFamily(declared.name, declared.help, labels=declared.labels)
        for label, meter in meters.items():
            if not meter.total_s:
                continue
            cumulative, buckets = 0, []
            for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), meter.counts, strict=True):
                cumulative += count
                buckets.append((bound, cumulative))
            family.add_metric((label,), buckets, meter.total_s)
        return family

    @staticmethod
    def _sampled(declared: Declared, values: Mapping[tuple[str, ...], float]) -> Metric:
        family_of = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
        family = family_of(declared.name, declared.help, labels=declared.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


def error_name(code: int) -> str:
    """Kafka's name of an error code; a code that Kafka does not have is `other`."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return "other"


metrics: Final = Metrics()
"""This process's metrics: a process is one broker."""


def registry() -> CollectorRegistry:
    """A registry that holds this process's metrics, for one exposition."""
    made = CollectorRegistry(auto_describe=False)
    made.register(metrics)
    return made
