"""This broker's lease on a node id, and the registry of live brokers.

One script renews the lease and returns the live brokers, by Redis's clock. A lease not renewed for
`broker_lease_suspect_ms` is *suspect*: still listed, but not named as leader or coordinator. After
`broker_lease_timeout_ms` the broker is gone; if it lives, it learns that from its next renewal and takes another.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Literal

import structlog

import tidegate
from tidegate.cluster.clean_shutdown import begin_serving, can_note
from tidegate.cluster.identity import open_cluster
from tidegate.cluster.listeners import single_listeners
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks

logger = structlog.get_logger()

TAKE_LEASE = Script("cluster/take_lease")
RENEW_LEASE = Script("cluster/renew_lease")
END_LEASE = Script("cluster/end_lease")

NODE_ID_QUARANTINE_MS: Final = 60_000
"""Time from the end of a lease until another address has its node id, so that clients no longer cache it."""
SINGLE_NODE_ID: Final = 1
"""The one node id that clients of a listener in address mode `single` get from every broker."""

State = Literal["starting", "serving", "draining"]
"""Only serving brokers are named as leader or coordinator, unless there are none."""
BrokerIdentity = tuple[int, str]
"""Node id and process: differs after a restart, and after another broker took the node id."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker by its own description; `suspect` if its lease was not renewed recently."""

    node_id: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None
    version: str
    state: State
    suspect: bool = False
    address: str = ""  # which it has alone, of the first listener that has one
    process: str = ""  # which has the node id; a later one at its address has the same id

    @property
    def identity(self) -> BrokerIdentity:
        return self.node_id, self.process

    def endpoint(self, listener: str) -> tuple[str, int]:
        """Host and port for clients of a listener; of the first one if the broker lacks this listener (see `shown`)."""
        return self.endpoints.get(listener) or next(iter(self.endpoints.values()))


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class LeaseEvents:
    """What a broker does when its lease or the other brokers change."""

    on_held: Callable[[float], None] = _ignore
    """After each renewal or new lease; the seconds until it ends."""
    on_unsure: Callable[[], None] = _ignore
    """After a failed attempt to renew."""
    on_lost: Callable[[], None] = _ignore
    """The lease was lost; before a new one is taken."""
    on_silent: Callable[[BrokerInfo], None] = _ignore
    """A serving broker became suspect or left without a drain; it is no longer in `preferred`."""
    on_broker_joined: Callable[[set[BrokerIdentity]], None] = _ignore
    """Identities of brokers that began to serve."""
    on_drain_asked: Callable[[], None] = _ignore
    """At each renewal after a drain request."""


NO_EVENTS: Final = LeaseEvents()


class BrokerLease:
    """The lease of one broker. `endpoints` are the advertised addresses: listener -> host, port.

    `version` increases with every change of `live` or `preferred`. `ends_s` is the expiry of the lease by `clock`,
    `ends_ms` by Redis's clock.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        endpoints: Mapping[str, tuple[str, int]],
        rack: str | None,
        state: State = "serving",
        *,
        clock: Callable[[], float] = perf_counter,
        events: LeaseEvents = NO_EVENTS,
    ) -> None:
        self.node_id = -1
        self.cluster_id = ""
        self.held = False
        self.ends_s = 0.0
        self.ends_ms = 0
        self.version = 0
        self.process = uuid.uuid4().hex
        self._clock = clock
        self._events = events
        self._store = store
        self._settings = settings
        self._keys = store.cluster_keys
        self._endpoints = dict(endpoints)
        self._single = single_listeners(settings)
        self._own_address = next((name for name in self._endpoints if name not in self._single), None)
        """A listener whose address no other broker shares."""
        self._rack = rack
        self._state: State = state
        self._described: dict[int, BrokerInfo] = {}
        self._described_version = ""
        self._live: list[BrokerInfo] = []
        self._preferred: list[BrokerInfo] = []
        self._lenient_until = 0.0
        self._own_ids: set[int] = set()
        self._held_at = 0
        self._renewed_s = 0.0
        self._refusal_logged = False
        self._loops = BackgroundTasks()

    # -- lifecycle

    async def start(self) -> None:
        """Open the cluster, lease a node id and keep renewing it. Raises CannotStart, StoreUnavailable."""
        self.cluster_id = await open_cluster(self._store, self._settings)
        observed_at = 0
        while not await self._take():
            if observed_at and self._held_at != observed_at:
                raise CannotStart(f"node id {self._settings.node_id} is held by another live broker")
            observed_at = self._held_at
            await asyncio.sleep(self._settings.broker_lease_renew_ms / 1000)
        if not await self.renew():
            raise CannotStart("the lease ended as soon as it was taken: is Redis's clock jumping?")
        logger.info("lease_taken", node_id=self.node_id, cluster_id=self.cluster_id)
        self._loops.run("lease", self._keep)

    async def serve(self) -> None:
        """Announce this broker as serving. Raises StoreUnavailable."""
        self._state = "serving"
        await self.renew()

    async def drain(self) -> None:
        """Announce this broker as draining. Raises StoreUnavailable."""
        self._state = "draining"
        await self.renew()

    async def close(self) -> None:
        """Stop renewing, and end the lease if the store is reachable."""
        await self._loops.close()
        if self.held:
            self.held = False
            with contextlib.suppress(StoreUnavailable):
                is_noted = await can_note(self._store)
                await self._store.run(
                    END_LEASE,
                    [self._keys.leases, self._keys.brokers, self._keys.info],
                    *(self.node_id, self.process, self._settings.broker_lease_timeout_ms, int(is_noted)),
                )

    def name(self) -> str:
        """The name of this broker in events of groups."""
        return str(self.node_id)

    @property
    def valid(self) -> bool:
        """Whether the lease is held and has not expired: not if Redis answers, but refuses to renew it."""
        return self.held and self._clock() < self.ends_s

    # -- live brokers

    def live(self) -> list[BrokerInfo]:
        """Every broker with a lease, suspect ones included, in order of node id."""
        return self._live

    def preferred(self) -> list[BrokerInfo]:
        """Brokers that serve and are not suspect; all live ones if there are none."""
        return self._preferred

    def shown(self, listener: str) -> list[BrokerInfo]:
        """The brokers listed to a listener's clients: all live ones that have it, or the one of mode `single`."""
        return [self._alone()] if self.is_single(listener) else _having(listener, self._live)

    def nameable(self, listener: str) -> list[BrokerInfo]:
        """Those of `shown` that may be named as leader or coordinator."""
        return [self._alone()] if self.is_single(listener) else _having(listener, self._preferred)

    def shown_node_id(self, listener: str) -> int:
        """The node id of this broker for clients of the listener."""
        return SINGLE_NODE_ID if self.is_single(listener) else self.node_id

    def is_single(self, listener: str) -> bool:
        """Whether the listener is in address mode `single`; one without an address is treated as the first."""
        return (listener if listener in self._endpoints else next(iter(self._endpoints))) in self._single

    def _alone(self) -> BrokerInfo:
        return BrokerInfo(SINGLE_NODE_ID, self._endpoints, None, tidegate.__version__, "serving")

    # -- the lease

    def _record(self) -> str:
        host, port = self._endpoints[self._own_address or next(iter(self._endpoints))]
        return json.dumps(
            {
                "process": self.process,
                "address": f"{host}:{port}",
                "listeners": self._endpoints,
                "rack": self._rack,
                "version": tidegate.__version__,
                "state": self._state,
            },
            separators=(",", ":"),
        )

    async def _take(self) -> bool:
        """Request a node id; False if another broker holds the configured one, `_held_at` is then its lease time."""
        settings, keys, asked_s = self._settings, self._keys, self._clock()
        # Who held this address before this process had its port is dead, and leaves its node id. Who holds it later was
        # given the same address by mistake: two that end each other's leases would change their node ids.
        address_is_ours = self._own_address is not None and not self._own_ids
        node_id, self._held_at = await self._store.run(
            TAKE_LEASE,
            [keys.leases, keys.brokers, keys.info],
            *(self.process, self._record(), "" if settings.node_id is None else settings.node_id),
            *(settings.broker_lease_timeout_ms, NODE_ID_QUARANTINE_MS, int(address_is_ours)),
        )
        if node_id < 0:
            return False
        self.node_id, self.held, self._renewed_s = node_id, True, asked_s
        self._own_ids.add(node_id)
        return True

    async def renew(self) -> bool:
        """Renew the lease and read the live brokers; False if the lease had ended. Raises StoreUnavailable."""
        keys, timeout_ms, asked_s = self._keys, self._settings.broker_lease_timeout_ms, self._clock()
        reply = await self._store.run(
            RENEW_LEASE,
            [keys.leases, keys.brokers, keys.info],
            *(self.node_id, self.process, self._record(), timeout_ms, self._described_version),
            max(0, int((asked_s - self._renewed_s) * 1000)),
        )
        if not reply[0]:
            return False
        *learnt, drain_asked, now_ms = reply[1:]
        self.ends_ms = now_ms + timeout_ms
        answered_s = self._clock()
        self._store.clock.observe(now_ms, answered_s - asked_s)
        self._learn(*learnt)
        if drain_asked:
            self._events.on_drain_asked()
        self._renewed_s = asked_s
        self.ends_s = asked_s + timeout_ms / 1000
        if answered_s < self.ends_s:  # else this process was paused: the next renewal decides
            self._events.on_held(self.ends_s - answered_s)
        return True

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                await self.keep_once()
            except StoreUnavailable as error:
                logger.debug("lease_not_renewed", reason=str(error))
            await asyncio.sleep(max(0.0, self._settings.broker_lease_renew_ms / 1000 - (clock() - started)))

    async def keep_once(self) -> None:
        """Renew; if the lease is lost, call `on_lost` once and take another lease. Raises StoreUnavailable."""
        try:
            sure = await self._renew_or_take()
        except Exception:
            self._events.on_unsure()
            raise
        if not sure:
            self._events.on_unsure()

    async def _renew_or_take(self) -> bool:
        if self.held:
            if await self.renew():
                return True
            self.held = False
            logger.warning("lease_lost", node_id=self.node_id)
            self._events.on_lost()
        await open_cluster(self._store, self._settings, self.cluster_id)
        if not await self._take():
            if not self._refusal_logged:
                self._refusal_logged = True
                logger.error("node_id_held_by_another", node_id=self._settings.node_id)
            return False
        try:
            await begin_serving(self._store, None)
        except StoreUnavailable:
            self.held = False  # the next attempt takes this lease again
            raise
        self._refusal_logged = False
        self._be_lenient()
        logger.info("lease_taken", node_id=self.node_id)
        return await self.renew()

    # -- changes of the live brokers

    def _learn(self, own_age_ms: int, version: bytes, ages: list[int], records: list[bytes | None]) -> None:
        if records:
            self._described_version = version.decode()
            self._described = {
                node_id: _described(node_id, record)
                for node_id, record in zip(ages[::2], records, strict=True)
                if record is not None
            }
        if own_age_ms > (suspect_ms := self._settings.broker_lease_suspect_ms):
            self._be_lenient()
        aged = zip(ages[::2], ages[1::2], strict=True)
        known = ((self._described[node_id], age_ms) for node_id, age_ms in aged if node_id in self._described)
        self._show({one.node_id: dataclasses.replace(one, suspect=age_ms > suspect_ms) for one, age_ms in known})

    def _be_lenient(self) -> None:
        """After a long gap in renewals (perhaps an outage for all), give the others time to renew."""
        self._lenient_until = asyncio.get_running_loop().time() + self._settings.broker_lease_suspect_ms / 1000

    def _show(self, live: dict[int, BrokerInfo]) -> None:
        if asyncio.get_running_loop().time() < self._lenient_until:
            taken = {one.address for one in live.values() if self._own_address and not one.suspect}
            for former in self._live:
                is_gone = former.node_id in self._own_ids or former.address in taken
                now = live.get(former.node_id)
                if not is_gone and (now is None or (now.suspect and now.process == former.process)):
                    live[former.node_id] = former
        ordered = [live[node_id] for node_id in sorted(live)]
        if ordered == self._live:
            return
        _log_changes(self._live, ordered)
        before, self._live = self._live, ordered
        serving = [one for one in ordered if one.state == "serving" and not one.suspect]
        self._preferred = serving or ordered
        self.version += 1
        if before and (joined := _newly_serving(before, serving, self.process)):
            self._events.on_broker_joined(joined)
        for one in _fallen_silent(before, live):
            self._events.on_silent(one)


def _having(listener: str, brokers: list[BrokerInfo]) -> list[BrokerInfo]:
    """The brokers with this listener; all if none has announced it, which this broker may not have done yet."""
    return [one for one in brokers if listener in one.endpoints] or brokers


def _fallen_silent(former: list[BrokerInfo], live: Mapping[int, BrokerInfo]) -> list[BrokerInfo]:
    """Brokers that served in the former list and whose lease is now suspect or gone."""
    renewed = {one.identity for one in live.values() if not one.suspect}
    return [one for one in former if one.state == "serving" and not one.suspect and one.identity not in renewed]


def _newly_serving(former: list[BrokerInfo], serving: list[BrokerInfo], own: str) -> set[BrokerIdentity]:
    """Other brokers that began to serve, from no lease or from `starting`; formerly suspect ones do not count."""
    known = {one.identity for one in former if one.state != "starting"}
    return {one.identity for one in serving if one.process != own} - known


def _described(node_id: int, record: bytes) -> BrokerInfo:
    values: dict[str, Any] = json.loads(record)
    endpoints = {name: (host, port) for name, (host, port) in values["listeners"].items()}
    names = ("rack", "version", "state", "address", "process")
    return BrokerInfo(node_id, endpoints, **{name: values[name] for name in names})


def _log_changes(before: list[BrokerInfo], after: list[BrokerInfo]) -> None:
    known, now = ({one.identity: one for one in brokers} for brokers in (before, after))
    for gone in (one for one in before if one.identity not in now):
        logger.info("broker_left", node_id=gone.node_id)
    for one in after:
        if (was := known.get(one.identity)) is None:
            logger.info("broker_joined", node_id=one.node_id)
            continue
        if was.suspect != one.suspect:
            logger.info("broker_suspect" if one.suspect else "broker_back", node_id=one.node_id)
        if was.state != one.state:
            logger.info("broker_state", node_id=one.node_id, state=one.state)
