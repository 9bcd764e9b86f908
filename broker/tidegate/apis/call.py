"""One request as a handler sees it: who asks, on which version, and how to answer."""

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
"""Part of a reply's body."""


@dataclass(slots=True)
class BrokerContext:
    """What handlers reach: the store and this broker's caches and waits. Made by `app.py`, lost with the process."""

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
    """The rare parts of inline requests, which have to wait for the store."""
    mirror: Mirror | None = None
    """Groups shown as Redis consumer groups; None where they are not."""
    delayed_heartbeats: DelayedHeartbeats | None = None
    """None where heartbeats are answered at once."""
    ask_to_drain: Callable[[str], None] = field(default=lambda by: None)
    """Have this broker drain and its process end, as by SIGTERM; who asks is logged."""


@dataclass(slots=True)
class Client:
    """One client connection, for as long as it is open."""

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
    """Keeps back the answer to the heartbeat that came last; whatever comes next has it released."""
    on_closed: list[Callable[[], None]] = field(default_factory=list)
    """Run once when the connection is gone: parked fetches and watchers cancel here."""

    def note_software(self, name: str, version: str) -> None:
        """The client says what it is (KIP-511); it may say so again."""
        self.software_name, self.software_version = name, version
        self.software.connections -= 1
        self.software = software_of(name)
        self.software.connections += 1

    @property
    def called_itself(self) -> str:
        """Its software and version in a word; "" where it did not say (KIP-511)."""
        return "" if self.software_name == "unknown" else f"{self.software_name} {self.software_version}"

    @property
    def held(self) -> int:
        """Requests whose answer is there and kept back: a heartbeat, or none."""
        return 1 if self.delayed_heartbeat is not None and self.delayed_heartbeat.is_delayed else 0

    def end(self) -> None:
        """Its connection is closed: run `on_closed`."""
        for closed in self.on_closed:
            try:
                closed()
            except Exception:
                logger.exception("on_closed_failed", connection=self.connection_id)

    def release(self, reason: Released) -> None:
        """Answer a heartbeat whose answer is kept back, if there is one."""
        if self.delayed_heartbeat is not None:
            self.delayed_heartbeat.release(reason)


@dataclass(slots=True)
class Call:
    """One request. Cold handlers return their response; hot ones call `reply` (or `drop`) exactly once."""

    context: BrokerContext
    client: Client
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    reply: Callable[[Body | Sequence[Body]], None]
    """Answer with the body's bytes, without header, in one piece or several."""
    drop: Callable[[], None]
    """Give no answer at all (Produce with acks=0)."""
    close: Callable[[str], None]
    """Close the connection, with the reason for the log."""
    run_alone: Callable[[], None]
    """Start no later request of the connection before this one is answered."""
    draining: asyncio.Event
    """Set when this broker drains: long polls answer early."""

    @property
    def org(self) -> str:
        """The organisation that the call acts in."""
        return self.client.org

    @property
    def store(self) -> Store:
        """The store."""
        return self.context.store
