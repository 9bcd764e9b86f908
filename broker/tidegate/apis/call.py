"""The context of one request in a handler: client, version, and the ways to reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from tidegate.admissions import Admissions
from tidegate.apis.commit_reports import CommitReports
from tidegate.apis.fetch_sessions import FetchSessions
from tidegate.apis.timeouts import Timeouts
from tidegate.apis.waiting_fetches import FetchWaits, LogEnds
from tidegate.audit.trail import AuditTrail
from tidegate.cluster.resource_configs import ResourceConfigs
from tidegate.diagnosis.commit_progress import CommitProgress
from tidegate.errors import RequestTimedOut
from tidegate.groups.consumer.topic_view import CatalogTopics
from tidegate.groups.expiry import STREAMS_KIND, ExpireOne
from tidegate.groups.share.service import ShareService
from tidegate.groups.streams.coordinator import StreamsGroups
from tidegate.groups.streams.model import SpendMutations
from tidegate.groups.streams.topology import InternalTopic
from tidegate.log.usage import Usage
from tidegate.memory import shares_of
from tidegate.quotas.group_limits import GroupLimits
from tidegate.quotas.leases import QuotaLeases
from tidegate.security.security import Security
from tidegate.security.session import SaslSession
from tidegate.settings import Settings
from tidegate.store.memory_pressure import MemoryPressure
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.client_metrics import ClientMetrics
from tidegate.telemetry.logs import LogLevel
from tidegate.telemetry.metrics_payload import load_decoder
from tidegate.telemetry.software import UNKNOWN, Software, software_of
from tidegate.topics import configs
from tidegate.transactions.coordinator import Coordinator

if TYPE_CHECKING:
    from tidegate.cluster.broker_lease import BrokerLease
    from tidegate.groups.consumer.heartbeats import ConsumerHeartbeats
    from tidegate.groups.delayed_heartbeats import DelayedHeartbeats
    from tidegate.groups.heartbeats import Heartbeats
    from tidegate.groups.offsets import Offsets
    from tidegate.groups.waiting import GroupWaits
    from tidegate.log.logs import Logs
    from tidegate.log.mirror import Mirror
    from tidegate.topics.catalog import Catalog
    from tidegate.transactions.producers import ProducerIds

logger = structlog.get_logger()

Allowed = tuple[Hashable, int, int]
"""The scope of a request that access control allowed, and the versions of the rules and of the topics then."""
OFFSET_ANSWERS_MAX: Final = 4
"""Requests for the offsets of several groups, or of many partitions, that are read at one time."""
_NOTHING_ALLOWED: Final[Mapping[int, Allowed]] = {}

Body = bytes | bytearray | memoryview
"""A piece of a reply's body."""


class Stalls(Protocol):
    """What knows of requests that waited while this process stood still, or whose client has gone."""

    def is_late(self, received_s: float) -> bool:
        """Whether a request received then, by `perf_counter`, may have waited for longer than clients do."""

    def has_left(self, transport: Any) -> bool:
        """Whether the client of a connection has closed its side."""


@dataclass(slots=True)
class BrokerContext:
    """The services that handlers use: the store, this broker's caches and waits. `app.py` creates one per process."""

    settings: Settings
    store: Store
    broker_lease: BrokerLease
    catalog: Catalog
    logs: Logs
    waits: GroupWaits
    heartbeats: Heartbeats
    offsets: Offsets
    consumers: ConsumerHeartbeats
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions = field(init=False)
    fetch_waits: FetchWaits = field(default_factory=FetchWaits)
    log_ends: LogEnds = field(default_factory=LogEnds)
    first_fetches: dict[int, Any] = field(default_factory=dict)
    """The fetches that equal ones may wait for (`first_fetch`), by the identity of their request."""
    produce_timeouts: Timeouts = field(default_factory=Timeouts)
    usage: Usage = field(default_factory=Usage)
    tasks: TaskSet = field(default_factory=TaskSet)
    """Tasks for the parts of inline requests that must wait for the store."""
    mirror: Mirror | None = None
    """Mirrors groups as Redis consumer groups; None if disabled."""
    delayed_heartbeats: DelayedHeartbeats | None = None
    """None if heartbeats are answered at once."""
    resource_configs: ResourceConfigs | None = None
    """What administrators set for brokers and client metrics; None in brokers that tests assemble."""
    security: Security | None = None
    """Users and access rules; None in brokers that tests assemble."""
    audit: AuditTrail | None = None
    """The security audit; None if it is not enabled."""
    quotas: QuotaLeases | None = None
    """Quotas of clients; None in brokers that tests assemble."""
    ask_to_drain: Callable[[str], None] = field(default=lambda by: None)
    """Drain this broker and end its process, as SIGTERM does; the caller's name is logged."""
    stalls: Stalls | None = None
    """None in brokers that tests assemble."""
    log_level: LogLevel | None = None
    """Set at run time; None: as the settings say."""
    client_metrics: ClientMetrics = field(default_factory=ClientMetrics)
    group_limits: GroupLimits | None = field(init=False)
    """How many groups an organisation may have; None without quotas."""
    offset_answers: Admissions = field(default_factory=lambda: Admissions(OFFSET_ANSWERS_MAX))
    memory_pressure: MemoryPressure = field(init=False)
    transactions: Coordinator = field(init=False)
    shares: ShareService = field(init=False)
    streams: StreamsGroups = field(init=False)
    commit_reports: CommitReports = field(init=False)
    commit_progress: CommitProgress = field(default_factory=CommitProgress)

    def __post_init__(self) -> None:
        if self.settings.client_metrics_enabled:
            load_decoder()
        self.group_limits = None if self.quotas is None else GroupLimits(self.store, self.quotas.quotas)
        self.fetch_sessions = FetchSessions(shares_of(self.settings.memory_max).fetch_sessions)
        self.memory_pressure = MemoryPressure(self.store)
        self.commit_reports = CommitReports(self.usage, self.mirror, self.store.changed_groups.add)
        self.shares = ShareService(
            self.store,
            self.settings,
            self.catalog,
            lambda topic, index: self.logs.partition(topic, index),
            lambda: self.broker_lease.name(),
            self.logs.durability.prover,
        )
        topics = CatalogTopics(self.catalog)
        self.streams = StreamsGroups(
            self.store, self.settings, topics, self._create_internal, lambda: self.broker_lease.name()
        )
        self.transactions = Coordinator(
            self.store,
            self.settings,
            self.catalog,
            self.logs,
            self.producer_ids,
            self.commit_reports.add_of_transaction,
        )

    @property
    def expirers(self) -> dict[str, ExpireOne]:
        """What expires share groups and streams groups, by the kind of their deadlines."""
        return {STREAMS_KIND: self.streams.expire, **self.shares.expirers}

    async def _create_internal(self, org: str, topic: InternalTopic, spend: SpendMutations) -> None:
        """Create a topic of a streams group. Raises TopicAlreadyExists, InvalidConfig, StoreUnavailable and others."""
        await self.catalog.check_new(org, topic.name)
        overrides = configs.parse(self.settings, dict(topic.configs), {})
        await self.catalog.check_limits(org, topic.name, topic.partition_count)
        await spend(topic.partition_count)
        await self.catalog.create(org, topic.name, topic.partition_count, overrides)


class DelayedReply(Protocol):
    """A reply that waits for an event, or for its time. The connection ends the delay earlier: see the methods."""

    is_delayed: bool
    """Whether the reply is known and delayed."""

    def on_next_request(self) -> None:
        """Another request arrived, which must not wait behind this one: reply."""

    def on_drain(self) -> None:
        """The broker closes the connection: reply."""

    def on_closed(self) -> None:
        """The client closed the connection."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """How to answer a request that equals the one before in all but its correlation id, without decoding it."""

    call: Call
    """The request before, which was answered at once: others that were answered later are not remembered."""
    body: bytes
    """The reply's body."""
    permitted: Callable[[], bool]
    """Has the effects of the request and returns True, or returns False: then the handler must run."""


@dataclass(slots=True)
class Client:
    """One client connection while it is open."""

    connection_id: int
    host: str
    port: int
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    org: str = "default"
    sasl: SaslSession | None = None
    """None on listeners without SASL."""
    mutation_throttle_s: float = 0.0
    """Throttle time of the topic changes under way, which are one request at a time; its reply takes it."""
    fetch_rules_version: int = -1
    """Version of the access rules by which the topics of its fetch session were checked."""
    allowed: Mapping[int, Allowed] = field(default_factory=lambda: _NOTHING_ALLOWED)
    """API key -> what access control allowed last, of requests that are often the same."""
    software: Software = UNKNOWN
    software_name: str = "unknown"
    software_version: str = "unknown"
    fetched: bool = False
    reader: tuple[str, str, int] | None = None
    """The connection as the group mirror identifies it, made at its first delivery."""
    has_share_session: bool = False
    """Whether share sessions end with the connection."""
    delayed: DelayedReply | None = None
    """Delays the reply to the latest request of its kind; the connection ends the delay."""
    repeat: Repeat | None = None
    """Set by an inline handler that has replied; the connection takes it over when the handler returns."""
    closed: bool = False
    """Whether the connection is closed."""
    _on_closed: list[Callable[[], None]] = field(default_factory=list, init=False)

    def note_software(self, name: str, version: str) -> None:
        """Record the client's software (KIP-511); it may be sent more than once."""
        self.software_name, self.software_version = name, version
        self.software.connections -= 1
        self.software = software_of(name)
        self.software.connections += 1

    @property
    def called_itself(self) -> str:
        """Its software and version as one word; "" if it sent none (KIP-511)."""
        return "" if self.software_name == "unknown" else f"{self.software_name} {self.software_version}"

    @property
    def delayed_count(self) -> int:
        """Number of requests whose reply is known and delayed: 0 or 1."""
        return 1 if self.delayed is not None and self.delayed.is_delayed else 0

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Run a function once when the connection is closed, or at once if it is; parked fetches cancel there."""
        if self.closed:
            callback()
        else:
            self._on_closed.append(callback)

    def end(self) -> None:
        """End the delay of a reply and run the functions of `when_closed`, after the connection was closed."""
        self.closed = True
        if self.delayed is not None:
            self.delayed.on_closed()
        for callback in self._on_closed:
            try:
                callback()
            except Exception:
                logger.exception("on_closed_failed", connection=self.connection_id)


@dataclass(slots=True)
class Call:
    """One request. Task handlers return their response; inline handlers call `reply` (or `drop`) exactly once."""

    context: BrokerContext
    client: Client
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    arrived_s: float
    """When its last byte was read, by `perf_counter`."""
    reply: Callable[[Body | Sequence[Body]], None]
    """Send the body's bytes, without header, in one piece or several."""
    drop: Callable[[], None]
    """Send no reply at all (Produce with acks=0)."""
    close: Callable[[str], None]
    """Close the connection, with the reason for the log."""
    run_alone: Callable[[], None]
    """Start no later request of the connection before this one is answered."""
    draining: asyncio.Event
    """Set when this broker drains; long polls then answer early."""
    mute: Callable[[float], None]
    """Take no more requests from the connection for so many seconds; the reply names them as its throttle time."""
    answer_later: Callable[[Coroutine[Any, Any, None], Any], object]
    """Run the rest of an inline handler in a task. What it raises is answered as what the handler raises; the second
    argument is the request."""

    def refuse_if_gone(self) -> None:
        """Raise RequestTimedOut if the client has left, for what is done part by part.

        It may have repeated the request at another broker and gone on there.
        """
        if self.client.closed:
            raise RequestTimedOut("the client has left")

    @property
    def org(self) -> str:
        """The organisation that the call acts in."""
        return self.client.org

    @property
    def store(self) -> Store:
        return self.context.store
