"""Heartbeats of consumer groups: those that report nothing in a group at rest need no decision, all others do."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from tidegate.groups.commit_answers import Prove
from tidegate.groups.consumer.commits import ConsumerCommits
from tidegate.groups.consumer.conversion import MetadataCodec
from tidegate.groups.consumer.coordinator import ConsumerGroups, OnDecided
from tidegate.groups.consumer.model import HeartbeatAnswer, HeartbeatRequest
from tidegate.groups.consumer.topic_view import CatalogTopics
from tidegate.groups.decision_queue import PendingCall
from tidegate.groups.epoch_heartbeats import EpochHeartbeats
from tidegate.groups.expire_and_retry import BrokerName, nobody
from tidegate.groups.heartbeat_snapshots import HeartbeatSnapshots, MemberSnapshot
from tidegate.groups.model import MemberRef
from tidegate.memory import shares_of
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import Failure
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog


class ConsumerHeartbeats:
    """The heartbeats of one broker; `groups` decides, `commits` stores offsets.

    `blobs` reads and writes the bytes that members of a classic group exchange, `broker` is the broker name in events,
    `lease_ends_ms` the end of the broker's lease by Redis's clock; `prove` waits until stored commits are as durable as
    `durability` says. Without `snapshots` that were started, scripts answer all heartbeats.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        catalog: Catalog,
        blobs: MetadataCodec,
        broker: BrokerName = nobody,
        lease_ends_ms: Callable[[], int] | None = None,
        prove: Prove | None = None,
        snapshots: HeartbeatSnapshots | None = None,
    ) -> None:
        topics = CatalogTopics(catalog, shares_of(settings.memory_max).patterns)
        self.groups = ConsumerGroups(store, settings, topics, blobs, broker)
        self.known = self.groups.cached
        """By the name of its hash: the groups that this broker knows as consumer groups with members."""
        self.commits = ConsumerCommits(store, self.groups, lease_ends_ms, prove)
        snapshots = snapshots or HeartbeatSnapshots(store, perf_counter, lambda shard: True)
        self.plain = EpochHeartbeats(store, snapshots, lambda: catalog.stored_version)
        """Also of share and streams groups."""
        self._settings = settings

    async def start(self) -> None:
        """Nothing runs until there is work."""

    async def close(self) -> None:
        """Send the renewals that wait, and cancel the decisions under way."""
        self.plain.close()
        await self.groups.close()
        self.groups.topics.close()

    def answer(
        self, keys: GroupKeys, request: HeartbeatRequest, on_decided: OnDecided, call: PendingCall | None = None
    ) -> MemberSnapshot | None:
        """Answer a heartbeat; `on_decided` gets its answer or its error. Returns the snapshot if one answered."""
        if not request.is_plain:
            self.groups.submit(keys, request, on_decided, call)
            return None

        def on_reply(reply: int | Failure | None) -> None:
            if reply is None:
                self.groups.submit(keys, request, on_decided, call)
            elif isinstance(reply, Failure):
                on_decided(reply.error)
            else:
                interval_ms = reply or self._settings.group_consumer_heartbeat_interval_ms
                on_decided(HeartbeatAnswer(request.member_id, request.member_epoch, None, interval_ms))

        return self.plain.answer(
            keys, MemberRef(request.member_id, request.member_epoch, request.instance_id), on_reply
        )
