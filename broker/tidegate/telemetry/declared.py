"""Every metric of a single broker, declared once. Metrics of the whole cluster: `declared_cluster.py`.

Labels come from closed sets (Kafka's APIs, versions and error codes, the package's scripts, a broker's links and
listeners, known client software): no topic, group or client names. docs/metrics.md is generated from this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric: its name (Prometheus adds `_total` to a counter's), kind, help text and label names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name of its samples; a histogram's are followed by `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, help_: str, *labels: str) -> Declared:
    return Declared(name, "counter", help_, labels)


def _gauge(name: str, help_: str, *labels: str) -> Declared:
    return Declared(name, "gauge", help_, labels)


def _histogram(name: str, help_: str, *labels: str) -> Declared:
    return Declared(name, "histogram", help_, labels)


# -- requests and clients
REQUEST_SECONDS: Final = _histogram(
    "tidegate_request_seconds", "From a request's last byte read to its answer handed over.", "api"
)
REQUESTS: Final = _counter("tidegate_requests", "Requests answered, by API and the version of it.", "api", "version")
REQUEST_ERRORS: Final = _counter(
    "tidegate_request_errors",
    "Answers with a Kafka error code, by API; group APIs count those of members and partitions too.",
    "api",
    "error",
)
CLIENT_REQUESTS: Final = _counter(
    "tidegate_client_requests", "Requests taken, by the software that the client says it is.", "software"
)
CLIENT_CONNECTIONS: Final = _gauge(
    "tidegate_client_connections",
    "Client connections open now, by the software that the client says it is.",
    "software",
)
CONNECTIONS: Final = _gauge("tidegate_connections", "Client connections open now.", "listener")
CONNECTIONS_OPENED: Final = _counter("tidegate_connections_opened", "Client connections accepted.")
CONNECTIONS_REFUSED: Final = _counter("tidegate_connections_refused", "Client connections above the cap.")
CONNECTIONS_SPREAD: Final = _counter(
    "tidegate_connections_rebalanced", "Client connections closed so that clients find brokers that have come."
)
TLS_FAILURES: Final = _counter("tidegate_tls_handshake_failures", "TLS handshakes that failed, plaintext clients too.")
BYTES_IN: Final = _counter("tidegate_received_bytes", "Bytes read from clients.")
BYTES_OUT: Final = _counter("tidegate_sent_bytes", "Bytes written to clients.")

# -- Redis as measured by this broker
SCRIPT_SECONDS: Final = _histogram("tidegate_script_seconds", "From a script queued for Redis to its reply.", "script")
LINK_UP: Final = _gauge("tidegate_redis_link_up", "Whether the link to Redis is up.", "link")
LINK_IN_FLIGHT: Final = _gauge("tidegate_redis_in_flight", "Commands sent and not answered.", "link")
LINK_CONNECTS: Final = _counter("tidegate_redis_connects", "Connections made to Redis.", "link")
CLOCK_DIFFERENCE_SECONDS: Final = _gauge(
    "tidegate_clock_difference_seconds",
    "How far this broker's own clock is ahead of Redis's; above 5 either way it does no upkeep.",
)

# -- groups and the archive as served by this broker
DELAYED_SECONDS: Final = _histogram(
    "tidegate_heartbeat_delayed_seconds", "How long answers to heartbeats were kept back, and why no longer.", "reason"
)
HEARTBEATS_DELAYED: Final = _gauge("tidegate_heartbeats_delayed", "Answers to heartbeats kept back now.")
ARCHIVE_READ_SECONDS: Final = _histogram(
    "tidegate_cold_read_seconds", "Reads of the archive, by whether the row group was kept.", "source"
)
ARCHIVE_READS: Final = _counter("tidegate_cold_reads", "Reads answered from the archive.")
ARCHIVE_READ_BYTES: Final = _counter("tidegate_cold_read_bytes", "Bytes of batches that those gave.")
ARCHIVE_READ_FAILURES: Final = _counter("tidegate_cold_read_failures", "Reads of the archive that failed.")
ARCHIVE_ROW_GROUPS_READ: Final = _counter("tidegate_cold_row_groups_read", "Row groups read from files.")
ARCHIVE_CACHE_BYTES: Final = _gauge("tidegate_cold_cache_bytes", "Bytes of row groups kept for reads.")

STRAY_LOGS: Final = _gauge(
    "tidegate_logs_with_stray_entry",
    "Partitions that this broker serves and cannot append to: their stream has an entry that no broker appended.",
)

# -- the process
READY: Final = _gauge("tidegate_ready", "Whether this broker is ready (see /health/ready).")
DRAINING: Final = _gauge("tidegate_draining", "Whether this broker lets its clients go.")
LIVE_BROKERS: Final = _gauge("tidegate_live_brokers", "Brokers that this one lists to clients.")
LOOP_LAG_SECONDS: Final = _gauge("tidegate_loop_lag_seconds", "Worst delay of the event loop lately.")
LOOPS_FAILED: Final = _counter("tidegate_background_failures", "Background loops that failed, restarted.")
BUILD: Final = _gauge("tidegate_build_info", "1; the version that runs.", "version")

# -- the lease of the cluster exporter
LAG_SAMPLES: Final = _counter("tidegate_lag_samples", "Samples of groups' lag that this broker took.")
LAG_ROUND_SECONDS: Final = _gauge("tidegate_lag_round_seconds", "The last round of lag samples took so long.")
CLUSTER_EXPORTED: Final = _gauge(
    "tidegate_cluster_exported", "Whether this broker is the one that tells about the cluster now."
)
REBALANCES: Final = _counter(
    "tidegate_rebalances", "Rebalances of all groups that began while this broker told about the cluster.", "cause"
)
BARRIER_SECONDS: Final = _histogram(
    "tidegate_barrier_seconds",
    "How long groups waited for members to join, and for the leader's assignment (sync); counted as rebalances are.",
    "phase",
)

BROKER: Final = (
    REQUEST_SECONDS, REQUESTS, REQUEST_ERRORS, CLIENT_REQUESTS, CLIENT_CONNECTIONS, CONNECTIONS, CONNECTIONS_OPENED,
    CONNECTIONS_REFUSED, CONNECTIONS_SPREAD, TLS_FAILURES, BYTES_IN, BYTES_OUT,
    SCRIPT_SECONDS, LINK_UP, LINK_IN_FLIGHT, LINK_CONNECTS, CLOCK_DIFFERENCE_SECONDS,
    DELAYED_SECONDS, HEARTBEATS_DELAYED, ARCHIVE_READ_SECONDS, ARCHIVE_READS, ARCHIVE_READ_BYTES, ARCHIVE_READ_FAILURES,
    ARCHIVE_ROW_GROUPS_READ, ARCHIVE_CACHE_BYTES, STRAY_LOGS,
    READY, DRAINING, LIVE_BROKERS, LOOP_LAG_SECONDS, LOOPS_FAILED, BUILD,
    LAG_SAMPLES, LAG_ROUND_SECONDS, CLUSTER_EXPORTED, REBALANCES, BARRIER_SECONDS,
)  # fmt: skip
"""All metrics of a broker, in the order of docs/metrics.md."""
