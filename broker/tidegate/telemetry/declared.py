"""Every metric of a single broker, declared once. Metrics of the whole cluster: `declared_cluster.py`.

Labels come from closed sets (Kafka's APIs, versions and error codes, the package's scripts, a broker's links and
listeners, known client software), or are capped (names of pushed metrics): no topic, group or client names.
docs/metrics.md is generated from this.
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


# -- what clients push
CLIENT_METRIC_SUM: Final = _gauge(
    "tidegate_client_metric_sum",
    "Sum of the values that clients pushed of their metrics (KIP-714); of counters these are the increases.",
    "metric",
    "software",
)
CLIENT_METRIC_COUNT: Final = _counter(
    "tidegate_client_metric_values", "Number of the values that clients pushed of their metrics.", "metric", "software"
)

# -- requests and clients
REQUEST_SECONDS: Final = _histogram(
    "tidegate_request_seconds", "Time from reading a request's last byte to handing over its reply.", "api"
)
REQUESTS: Final = _counter("tidegate_requests", "Requests answered, by API and version.", "api", "version")
REQUEST_ERRORS: Final = _counter(
    "tidegate_request_errors",
    "Replies with a Kafka error code, by API; group APIs also count codes of members and partitions.",
    "api",
    "error",
)
CLIENT_REQUESTS: Final = _counter(
    "tidegate_client_requests", "Requests received, by the client software that ApiVersions names.", "software"
)
CLIENT_CONNECTIONS: Final = _gauge(
    "tidegate_client_connections",
    "Open client connections, by the client software that ApiVersions names.",
    "software",
)
CONNECTIONS: Final = _gauge("tidegate_connections", "Open client connections.", "listener")
CONNECTIONS_OPENED: Final = _counter("tidegate_connections_opened", "Client connections accepted.")
CONNECTIONS_REFUSED: Final = _counter("tidegate_connections_refused", "Client connections refused at the limit.")
CONNECTIONS_SPREAD: Final = _counter(
    "tidegate_connections_rebalanced", "Client connections closed to move clients to brokers that have joined."
)
TLS_FAILURES: Final = _counter(
    "tidegate_tls_handshake_failures", "Failed TLS handshakes, including those of plaintext clients."
)
AUTHENTICATIONS: Final = _counter("tidegate_sasl_authentications", "SASL authentications that succeeded.")
AUTHENTICATIONS_FAILED: Final = _counter("tidegate_sasl_authentication_failures", "SASL authentications that failed.")
AUDIT_EVENTS: Final = _counter("tidegate_audit_events", "Security audit events written, or tried to.")
AUDIT_EVENTS_DROPPED: Final = _counter(
    "tidegate_audit_events_dropped", "Security audit events lost: too many waited, or Redis or the disk refused them."
)
THROTTLE_SECONDS: Final = _histogram(
    "tidegate_throttle_seconds", "Throttle times of clients beyond a quota, by the quota.", "quota"
)
BYTES_IN: Final = _counter("tidegate_received_bytes", "Bytes read from clients.")
BYTES_OUT: Final = _counter("tidegate_sent_bytes", "Bytes written to clients.")

# -- Redis as measured by this broker
SCRIPT_SECONDS: Final = _histogram(
    "tidegate_script_seconds", "Time from queueing a script for Redis to its reply.", "script"
)
LINK_UP: Final = _gauge("tidegate_redis_link_up", "1 if the connection to Redis is up.", "link")
LINK_IN_FLIGHT: Final = _gauge("tidegate_redis_in_flight", "Commands that wait for their reply.", "link")
LINK_CONNECTS: Final = _counter("tidegate_redis_connects", "Connections opened to Redis.", "link")
FUNCTIONS_LOADED: Final = _gauge(
    "tidegate_redis_functions",
    "1 if every primary runs the scripts of groups as Redis Functions, 0 if one runs them by EVALSHA.",
)
CLOCK_DIFFERENCE_SECONDS: Final = _gauge(
    "tidegate_clock_difference_seconds",
    "Difference of this broker's clock to Redis's; beyond 5 s either way the broker does no upkeep.",
)

# -- groups and the archive as served by this broker
DELAYED_SECONDS: Final = _histogram(
    "tidegate_heartbeat_delayed_seconds", "Delay of heartbeat replies, by the reason for the reply.", "reason"
)
HEARTBEATS_DELAYED: Final = _gauge("tidegate_heartbeats_delayed", "Heartbeat replies being delayed.")
HEARTBEATS_ANSWERED: Final = _counter(
    "tidegate_heartbeats_answered_from_snapshots", "Heartbeats answered before their sessions were renewed."
)
ARCHIVE_READ_SECONDS: Final = _histogram(
    "tidegate_cold_read_seconds", "Duration of archive reads, by source: cache or file.", "source"
)
ARCHIVE_READS: Final = _counter("tidegate_cold_reads", "Reads answered from the archive.")
ARCHIVE_READ_BYTES: Final = _counter("tidegate_cold_read_bytes", "Bytes of batches read from the archive.")
ARCHIVE_READ_FAILURES: Final = _counter("tidegate_cold_read_failures", "Failed reads of the archive.")
ARCHIVE_ROW_GROUPS_READ: Final = _counter("tidegate_cold_row_groups_read", "Row groups read from files.")
ARCHIVE_CACHE_BYTES: Final = _gauge(
    "tidegate_cold_cache_bytes", "Bytes of cached row groups and footers of the archive."
)

STRAY_LOGS: Final = _gauge(
    "tidegate_logs_with_stray_entry",
    "Partitions that refuse appends, because their stream has an entry that no broker appended.",
)

LOGS_EVICTED: Final = _counter(
    "tidegate_logs_evicted",
    "Idle logs that left this broker's memory because their share of memory_max was full; each is loaded again at its "
    "next use. A steady rate means that the broker serves more partitions than fit.",
)
LOST_RECORDS: Final = _counter(
    "tidegate_log_lost_records",
    "Records that this broker knew and that logs lack since Redis failed over or came back with older data, or since "
    "somebody deleted what a transaction had staged (format record).",
)
RECORDS_WITHOUT_OFFSET: Final = _counter(
    "tidegate_records_without_offset",
    "Entries read in topics of format record whose sequence is beyond tidegate.sequence.bits: Kafka clients do not "
    "receive them.",
)

# -- the process
READY: Final = _gauge("tidegate_ready", "1 if this broker is ready (see /health/ready).")
DRAINING: Final = _gauge("tidegate_draining", "1 while this broker drains.")
LIVE_BROKERS: Final = _gauge("tidegate_live_brokers", "Live brokers, as clients of this broker get them.")
LOOP_LAG_SECONDS: Final = _gauge("tidegate_loop_lag_seconds", "Recent maximum delay of the event loop.")
HOST_PROCESSES_READY: Final = _gauge(
    "tidegate_host_processes_ready",
    "Broker processes of this host that are ready; only the first of several `processes` exports it.",
)
HOST_RESTARTS: Final = _counter(
    "tidegate_host_process_restarts",
    "Broker processes of this host that ended and were started again; only the first of several exports it.",
)
LOOP_STALL_MAX_SECONDS: Final = _gauge(
    "tidegate_event_loop_stall_max_seconds", "Longest delay of the event loop since the start of the broker."
)
LOOPS_FAILED: Final = _counter("tidegate_background_failures", "Failures of background loops, which were restarted.")
BUILD: Final = _gauge("tidegate_build_info", "Always 1; the label is the version.", "version")

# -- the lease of the cluster exporter
LAG_SAMPLES: Final = _counter("tidegate_lag_samples", "Lag samples taken by this broker.")
LAG_ROUND_SECONDS: Final = _gauge("tidegate_lag_round_seconds", "Duration of the last round of lag samples.")
CLUSTER_EXPORTED: Final = _gauge("tidegate_cluster_exported", "1 if this broker exports the cluster metrics.")
REBALANCES: Final = _counter(
    "tidegate_rebalances",
    "Rebalances of all groups that began while this broker exported the cluster metrics.",
    "cause",
)
BARRIER_SECONDS: Final = _histogram(
    "tidegate_barrier_seconds",
    "Time that groups waited for members to join and for the leader's assignment (sync), as tidegate_rebalances.",
    "phase",
)

BROKER: Final = (
    REQUEST_SECONDS, REQUESTS, REQUEST_ERRORS, CLIENT_REQUESTS, CLIENT_CONNECTIONS, CONNECTIONS, CONNECTIONS_OPENED,
    CONNECTIONS_REFUSED, CONNECTIONS_SPREAD, TLS_FAILURES, AUTHENTICATIONS, AUTHENTICATIONS_FAILED,
    THROTTLE_SECONDS, AUDIT_EVENTS, AUDIT_EVENTS_DROPPED, BYTES_IN,
    BYTES_OUT, SCRIPT_SECONDS, LINK_UP, LINK_IN_FLIGHT, LINK_CONNECTS, FUNCTIONS_LOADED, CLOCK_DIFFERENCE_SECONDS,
    DELAYED_SECONDS, HEARTBEATS_DELAYED, HEARTBEATS_ANSWERED,
    ARCHIVE_READ_SECONDS, ARCHIVE_READS, ARCHIVE_READ_BYTES, ARCHIVE_READ_FAILURES,
    ARCHIVE_ROW_GROUPS_READ, ARCHIVE_CACHE_BYTES, STRAY_LOGS, LOGS_EVICTED, LOST_RECORDS,
    RECORDS_WITHOUT_OFFSET,
    READY, DRAINING, LIVE_BROKERS, LOOP_LAG_SECONDS, LOOP_STALL_MAX_SECONDS, LOOPS_FAILED, HOST_PROCESSES_READY,
    HOST_RESTARTS, BUILD,
    LAG_SAMPLES, LAG_ROUND_SECONDS, CLUSTER_EXPORTED, REBALANCES, BARRIER_SECONDS,
)  # fmt: skip
"""All metrics of a broker, in the order of docs/metrics.md."""
