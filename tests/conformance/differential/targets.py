"""Both targets with the same settings: Tidegate as two broker processes, Apache Kafka as one KRaft node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.errors import ErrorCode

from bench.cluster import CONNECTIONS_STAY, Cluster
from bench.kafka_peer import KafkaPeer
from tests.conformance.differential.messages import PEER_VERSION, build
from tests.kit.wire import RawClient

BROKERS: Final = 2
TOPICS: Final = {"orders": 3, "payments": 2}
"""The topics of every conversation, with their partitions."""

_WARM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings that both targets take; the rest is at its default."""

    name: str
    initial_rebalance_delay_ms: int = 0
    group_size_max: int = 1_000
    session_timeout_ms_min: int = 200

    @property
    def kafka(self) -> dict[str, str]:
        """As Kafka's server.properties."""
        return {
            "group.initial.rebalance.delay.ms": str(self.initial_rebalance_delay_ms),
            "group.max.size": str(self.group_size_max),
            "group.min.session.timeout.ms": str(self.session_timeout_ms_min),
            "auto.create.topics.enable": "false",
        }

    @property
    def tidegate(self) -> dict[str, str]:
        """As a broker's environment."""
        return {
            "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": str(self.initial_rebalance_delay_ms),
            "TIDEGATE_GROUP_MAX_SIZE": str(self.group_size_max),
            "TIDEGATE_GROUP_MIN_SESSION_TIMEOUT_MS": str(self.session_timeout_ms_min),
        }


PROMPT: Final = Profile("prompt")
"""No initial delay: what follows a step follows at once."""

LIMITED: Final = Profile("limited", initial_rebalance_delay_ms=1_500, group_size_max=3)
"""An initial delay and small groups."""

FULL: Final = Profile("full", group_size_max=2)
"""Small groups without the initial delay."""

PROFILES: Final = {profile.name: profile for profile in (PROMPT, LIMITED, FULL)}


@dataclass(frozen=True, slots=True)
class Target:
    """Where one system answers."""

    name: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """The pair of a profile."""

    kafka: Target
    tidegate: Target


@contextlib.contextmanager
def running(profile: Profile) -> Iterator[Targets]:
    """Start both, with topics and coordinators ready. Raises PeerUnavailable where Kafka cannot be had."""
    with (
        KafkaPeer(profile.kafka, PEER_VERSION) as kafka,
        Cluster(brokers=BROKERS, settings=profile.tidegate, constants=CONNECTIONS_STAY) as cluster,
    ):
        pair = Targets(
            Target("kafka", (kafka.bootstrap,)),
            Target("tidegate", tuple(broker.address for broker in cluster.brokers)),
        )
        asyncio.run(_warm(pair.kafka))
        asyncio.run(_warm(pair.tidegate))
        yield pair


async def _warm(target: Target) -> None:
    """Make the topics; wait until the coordinator has loaded (Kafka makes its offsets topic when first asked)."""
    async with asyncio.timeout(_WARM_S), await RawClient.connect(target.addresses[0]) as client:
        await _until(client, _create_topics(), lambda answer: all(_made(topic) for topic in answer.topics))
        for key_type in (0, 1):
            find = build("FindCoordinator", 2, {"key": "warm", "key_type": key_type})
            await _until(client, find, lambda answer: answer.error_code is ErrorCode.none)
        fetch = build("OffsetFetch", 5, {"group_id": "warm", "topics": []})
        await _until(client, fetch, lambda answer: answer.error_code is ErrorCode.none)
        await _until(client, build("ListGroups", 2, {}), lambda answer: answer.error_code is ErrorCode.none)


def _create_topics() -> Any:
    topics = tuple(
        CreatableTopic(name=name, num_partitions=count, replication_factor=1, assignments=(), configs=())  # type: ignore[arg-type]
        for name, count in TOPICS.items()
    )
    return CreateTopicsRequest(topics=topics)


def _made(topic: Any) -> bool:
    return topic.error_code in (ErrorCode.none, ErrorCode.topic_already_exists)


async def _until(client: RawClient, request: Any, good: Any) -> None:
    while not good(await client.ask(request)):
        await asyncio.sleep(0.1)
