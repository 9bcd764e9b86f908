"""Creates the internal topics of a streams group for a member, within what one CreateTopics of its client could.

Kafka's coordinator sends a CreateTopics in the member's name. What it refuses leaves the group not ready, with the
status MISSING_INTERNAL_TOPICS and the reason, which clients wait on; each heartbeat tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError, StoreUnavailable, TopicAlreadyExists, TopicAuthorizationFailed
from tidegate.groups.streams.model import SpendMutations, StreamsHeartbeat
from tidegate.groups.streams.topology import InternalTopic
from tidegate.store.slices import slices
from tidegate.topics.catalog import PARTITIONS_MAX

_AT_ONCE: Final = 16

CreateTopic = Callable[[str, InternalTopic, SpendMutations], Awaitable[None]]
"""Create an internal topic of an organisation; the quota is spent only if it can be created. Raises KafkaError."""


async def create_missing(
    create: CreateTopic, org: str, missing: Sequence[InternalTopic], heartbeats: Iterable[StreamsHeartbeat]
) -> list[str]:
    """Create topics that one of the members may create; what went wrong.

    Nothing more is tried once the quota is used up or the store is unavailable.
    """
    count = sum(max(topic.partition_count, 0) for topic in missing)
    if count > PARTITIONS_MAX:
        return [f"They have {count} partitions; {PARTITIONS_MAX} at most are created at once."]
    members = list(heartbeats)
    failures: list[str] = []
    async for some in slices(missing, _AT_ONCE):
        errors = await asyncio.gather(*(_error_of(create, org, topic, members) for topic in some))
        failed = [(topic, error) for topic, error in zip(some, errors, strict=True) if error is not None]
        failures += [f"{topic.name} was not created: {error}" for topic, error in failed]
        if any(_is_retriable(error) for _, error in failed):
            break
    return failures


async def _error_of(
    create: CreateTopic, org: str, topic: InternalTopic, members: Sequence[StreamsHeartbeat]
) -> KafkaError | None:
    member = next((one for one in members if one.may_create(topic.name)), None)
    if member is None:
        return TopicAuthorizationFailed("not authorized")
    try:
        await create(org, topic, member.spend_mutations)
    except TopicAlreadyExists:  # another broker was faster
        return None
    except KafkaError as error:
        return error
    return None


def _is_retriable(error: KafkaError) -> bool:
    return isinstance(error, StoreUnavailable) or error.code is ErrorCode.throttling_quota_exceeded
