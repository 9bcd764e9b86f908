"""The context of one request in a handler: client, version, and the ways to reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tidegate.apis.fetch_sessions import FetchSessions
from tidegate.apis.fetch_waits import FetchWaits
from tidegate.apis.timeouts import Timeouts
from tidegate.log.usage import Usage
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.software import UNKNOWN, Software, software_of

if TYPE_CHECKING:
    from tidegate.cluster.broker_lease import BrokerLease
    from tidegate.groups.delayed_heartbeats import DelayedHeartbeat, DelayedHeartbeats, Released
    from tidegate.groups.heartbeats import Heartbeats
    from tidegate.groups.offsets import Offsets
    from tidegate.groups.waiting import GroupWaits
    from tidegate.log.logs import Logs
    from tidegate.log.mirror import Mirror
    from tidegate.topics.catalog import Catalog
    from tidegate.transactions.producers import ProducerIds

logger = structlog.get_logger()

Body = bytes | bytearray | memoryview
"""A piece of a reply's body."""


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
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    fetch_waits: FetchWaits = field(default_factory=FetchWaits)
    produce_timeouts: Timeouts = field(default_factory=Timeouts)
    usage: Usage = field(default_factory=Usage)
    tasks: TaskSet = field(default_factory=TaskSet)
    """Tasks for the parts of inline requests that must wait for the store."""
    mirror: Mirror | None = None
    """Mirrors groups as Redis consumer groups; None if disabled."""
    delayed_heartbeats: DelayedHeartbeats | None = None
    """None if heartbeats are answered at once."""
    ask_to_drain: Callable[[str], None] = field(default=lambda by: None)
    """Drain this broker and end its process, as SIGTERM does; the caller's name is logged."""


@dataclass(slots=True)
class Client:
    """One client connection while it is open."""

    connection_id: int
    host: str
    port: int
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    org: str = "default"
    software: Software = UNKNOWN
    software_name: str = "unknown"
    software_version: str = "unknown"
    fetched: bool = False
    delayed_heartbeat: DelayedHeartbeat | None = None
    """Delays the answer of the latest heartbeat; any later request releases it."""
    on_closed: list[Callable[[], None]] = field(default_factory=list)
    """Run once when the connection is closed; parked fetches and watchers cancel here."""

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
    def held(self) -> int:
        """Number of requests with a delayed answer: 0 or 1 heartbeats."""
        return 1 if self.delayed_heartbeat is not None and self.delayed_heartbeat.is_delayed else 0

    def end(self) -> None:
        """Run `on_closed` after the connection was closed."""
        for closed in self.on_closed:
            try:
                closed()
            except Exception:
                logger.exception("on_closed_failed", connection=self.connection_id)

    def release(self, reason: Released) -> None:
        """Send the answer of the delayed heartbeat, if there is one."""
        if self.delayed_heartbeat is not None:
            self.delayed_heartbeat.release(reason)


@dataclass(slots=True)
class Call:
    """One request. Task handlers return their response; inline handlers call `reply` (or `drop`) exactly once."""

    context: BrokerContext
    client: Client
    api_key: int
    version: int
    correlation_id: int
    client_id: str
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

    @property
    def org(self) -> str:
        """The organisation that the call acts in."""
        return self.client.org

    @property
    def store(self) -> Store:
        return self.context.store
