"""Heartbeats of consumer groups, batched by shard and event-loop tick.

One script renews the sessions of members that report nothing in a stable group, as for classic groups; every other
heartbeat goes to a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidegate.errors import CoordinatorNotAvailable, KafkaError
from tidegate.groups.coalesce import Coalescer, Gathered
from tidegate.groups.consumer.commits import ConsumerCommits
from tidegate.groups.consumer.conversion import MetadataCodec
from tidegate.groups.consumer.coordinator import ConsumerGroups, OnDecided
from tidegate.groups.consumer.model import HeartbeatAnswer, HeartbeatRequest
from tidegate.groups.consumer.stored import instance_text
from tidegate.groups.consumer.topic_view import CatalogTopics
from tidegate.groups.expire_and_retry import BrokerName, nobody
from tidegate.groups.offsets import Prove
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog

CONSUMER_HEARTBEAT = Script("groups/consumer_heartbeat")

_PER_SCRIPT_MAX: Final = 500

Queued = tuple[HeartbeatRequest, OnDecided]


class ConsumerHeartbeats:
    """The queued heartbeats of this broker's tick; `groups` decides, `commits` stores offsets.

    `blobs` reads and writes the bytes that members of a classic group exchange, `broker` is the broker name in events,
    `lease_ends_ms` the end of the broker's lease by Redis's clock; `prove` waits until stored commits are as durable as
    `durability` says.
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
    ) -> None:
        self.groups = ConsumerGroups(store, settings, CatalogTopics(catalog), blobs, broker)
        self.known = self.groups.cached
        """By the name of its hash: the groups that this broker knows as consumer groups with members."""
        self.commits = ConsumerCommits(store, self.groups, lease_ends_ms, prove)
        self._store, self._settings, self._catalog = store, settings, catalog
        self._tick: Coalescer[Queued] = Coalescer(self._flush)

    def add(self, keys: GroupKeys, request: HeartbeatRequest, on_decided: OnDecided) -> None:
        """Queue a heartbeat; `on_decided` gets its answer or its error."""
        if request.is_plain:
            self._tick.add(keys, (request, on_decided))
        else:
            self.groups.submit(keys, request, on_decided)

    def _flush(self, groups: Gathered[Queued]) -> None:
        part: Gathered[Queued] = []
        count = 0
        for keys, heartbeats in groups:
            for first in range(0, len(heartbeats), _PER_SCRIPT_MAX):
                some = heartbeats[first : first + _PER_SCRIPT_MAX]
                if count + len(some) > _PER_SCRIPT_MAX:
                    self._send(part)
                    part, count = [], 0
                part.append((keys, some))
                count += len(some)
        self._send(part)

    def _send(self, groups: Gathered[Queued]) -> None:
        key_names: list[str] = []
        args: list[Arg] = [self._catalog.stored_version]
        for keys, heartbeats in groups:
            key_names += (keys.group, keys.consumers, keys.consumer_sessions, keys.revocations)
            args.append(len(heartbeats))
            for request, _ in heartbeats:
                instance = "" if request.instance_id is None else instance_text(request.instance_id)
                args += (request.member_id, request.member_epoch, instance)
        self._store.send_script(CONSUMER_HEARTBEAT, key_names, args, lambda reply: self._answered(groups, reply))

    def _answered(self, groups: Gathered[Queued], reply: Any) -> None:
        if isinstance(reply, Exception):
            error = reply if isinstance(reply, KafkaError) else CoordinatorNotAvailable()
            for _, heartbeats in groups:
                for _, on_decided in heartbeats:
                    on_decided(error)
            return
        at = 1
        for keys, heartbeats in groups:
            self._hand_out(keys, heartbeats, reply[at], reply[at + 1 : at + 1 + len(heartbeats)])
            at += 1 + len(heartbeats)

    def _hand_out(self, keys: GroupKeys, heartbeats: Sequence[Queued], interval_ms: int, codes: Sequence[int]) -> None:
        interval_ms = interval_ms or self._settings.group_consumer_heartbeat_interval_ms
        for (request, on_decided), code in zip(heartbeats, codes, strict=True):
            if code == 0:
                on_decided(HeartbeatAnswer(request.member_id, request.member_epoch, None, interval_ms))
            else:
                self.groups.submit(keys, request, on_decided)
