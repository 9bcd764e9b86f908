"""JSON models of brokers, Redis, the cluster overview and the audit."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tidegate.http.models.base import Model
from tidegate.http.models.groups import ListedGroup


class Listener(Model):
    """The address that clients of one listener get."""

    name: str
    host: str
    port: int


class Broker(Model):
    """A broker that has a lease. Its figures are null if it reported none within 20 s."""

    node_id: int
    process: str = Field(description="differs after each start; a broker that starts again keeps its node id")
    listeners: list[Listener]
    rack: str | None
    version: str
    state: Literal["starting", "serving", "draining", "suspect"]
    answers: bool = Field(description="whether this is the broker that answers")
    uptime_s: float | None
    started_ms: int | None
    connections: int | None
    loop_lag_ms: float | None = Field(description="worst of the last ten seconds")
    cpu_share: float | None = Field(description="of one core")
    memory_bytes: int | None
    shards: int = Field(description="shards of groups that clients are sent to it for")
    partitions: int = Field(description="partitions that clients are sent to it for")


class Brokers(Model):
    """Every broker that has a lease."""

    cluster_id: str
    brokers: list[Broker]


class Replica(Model):
    """A replica of Redis."""

    address: str
    state: str
    behind_bytes: int
    last_contact_s: int


class OrgMemory(Model):
    """Estimated memory of an organisation in Redis."""

    org: str
    topics_bytes: int
    groups_bytes: int


class TopicMemory(Model):
    """Memory of a topic in Redis; `estimated` if not every partition was measured."""

    org: str
    topic: str
    bytes: int
    estimated: bool


class Memory(Model):
    """Memory of Redis; `max_bytes` 0 means no limit."""

    used_bytes: int | None
    peak_bytes: int | None
    resident_bytes: int | None
    max_bytes: int | None
    fragmentation_ratio: float | None
    orgs: list[OrgMemory]
    topics: list[TopicMemory]
    topics_left_out: int


class Eviction(Model):
    """Whether Redis may evict keys."""

    policy: str
    evicted_keys: int | None
    expired_keys: int | None


class Persistence(Model):
    """Persistence of Redis and whether the last write succeeded."""

    aof: bool
    aof_last_write: str
    aof_last_rewrite: str
    aof_rewriting: bool
    aof_bytes: int | None
    aof_delayed_fsyncs: int | None
    rdb_last_save: str
    rdb_last_save_s: int | None
    rdb_saving: bool
    loading: bool


class RedisClients(Model):
    """Connections of Redis."""

    connected: int | None
    max: int | None
    blocked: int | None
    rejected: int | None


class Latency(Model):
    """Latency of a command as Redis measures it, in microseconds."""

    command: str
    p50_us: float
    p99_us: float


class ScriptTimes(Model):
    """Latency of a script as this broker measures it; `p99_ms` is an upper bound."""

    script: str
    count: int
    mean_ms: float
    p99_ms: float | None


class Link(Model):
    """A connection of this broker to Redis."""

    name: str
    server: str
    up: bool
    in_flight: int


class PrimaryServer(Model):
    """A server that has keys: several in Redis Cluster. Figures that it does not report are null."""

    server: str
    up: bool
    used_bytes: int | None
    max_bytes: int | None
    replicas: int | None


class Redis(Model):
    """The server that this broker uses; in Redis Cluster the first of `primaries`."""

    flavour: str
    version: str
    mode: str
    role: str
    uptime_s: int | None
    replicas: list[Replica]
    memory: Memory
    eviction: Eviction
    persistence: Persistence
    clients: RedisClients
    operations_per_s: int | None
    round_trip_ms: float
    latency: list[Latency]
    scripts: list[ScriptTimes]
    links: list[Link]
    primaries: list[PrimaryServer]


class Trouble(Model):
    """A problem of brokers or Redis."""

    severity: Literal["", "trouble", "stuck"]
    kind: str
    sentence: str


class Totals(Model):
    """Counts of one organisation; connections of the whole cluster."""

    groups: int
    groups_left_out: int = Field(description="which were not looked at, so that what follows is without them")
    groups_in_trouble: int
    members: int
    lag: int
    topics: int
    partitions: int
    connections: int


class Overview(Model):
    """Current problems; each list is sorted by severity."""

    cluster_id: str
    version: str
    node_id: int
    org: str
    troubles: list[Trouble]
    totals: Totals
    groups: list[ListedGroup]
    brokers: list[Broker]
    redis: Redis


class Action(Model):
    """A change by an administrator. `open`: running, or its broker died. `failed`: possibly executed in part."""

    action_id: str
    time_ms: int
    ended_ms: int | None
    who: str
    role: str
    remote: str
    broker: int
    action: str
    arguments: dict[str, Any]
    outcome: Literal["open", "done", "refused", "failed"]
    error: str | None
    result: dict[str, Any]
    undoable: bool


class Audit(Model):
    """The last actions, newest first."""

    actions: list[Action]


class AuditEvent(Model):
    """Who authenticated, changed or was denied something; `count`: how many equal ones it stands for."""

    time_ms: int
    who: str
    org: str
    host: str
    what: str
    resources: list[str]
    status: str
    count: int
    detail: str


class AuditEvents(Model):
    """The last events, newest first."""

    events: list[AuditEvent]
