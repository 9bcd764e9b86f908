"""REST endpoints of operators: they change state."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tidegate.admin import actions, topic_views
from tidegate.admin.api import topic_models
from tidegate.admin.api.endpoint import Asked, Model, OfOrg, endpoint


class Reason(OfOrg):
    """Why, for the group's events."""

    reason: str = Field(default="removed by an operator", max_length=255)


class RemovedMember(Model):
    """Who was removed."""

    member_id: str
    client_id: str
    host: str


class NewTopic(Model):
    """A topic to be made; without a count it gets `num_partitions` of the brokers."""

    topic: str
    partition_count: int | None = Field(default=None, ge=1)
    configs: dict[str, str] = Field(default_factory=dict)


class Growth(Model):
    """How many partitions a topic is to have."""

    count: int = Field(ge=1)


class TrimmedPartition(Model):
    """Records below `before` are to go; null: all of them."""

    partition: int = Field(ge=0)
    before: int | None = Field(ge=0)


class Trim(Model):
    """What is to be deleted of a topic."""

    partitions: list[TrimmedPartition] = Field(min_length=1, max_length=1_000)


class LogStart(Model):
    """Where a partition begins now."""

    partition: int
    log_start: int


class Trimmed(Model):
    """What is left of the partitions that were named."""

    topic: str
    partitions: list[LogStart]


class ConfigChanges(Model):
    """Configs to be set, and those that go back to their defaults."""

    set: dict[str, str] = Field(default_factory=dict)
    defaults: list[str] = Field(default_factory=list)


@endpoint("POST", "/brokers/{node_id}/drain", None, fails=(404,))
async def drain_broker(asked: Asked) -> None:
    """Have a broker drain and end, as by SIGTERM; it hears of it within a second."""
    await actions.drain_broker(asked.context, asked.actor, asked.names["node_id"])


@endpoint("DELETE", "/groups/{group}", None, query=OfOrg, fails=(404, 409))
async def delete_group(asked: Asked) -> None:
    """Delete an empty group with its offsets."""
    await actions.delete_group(asked.context, asked.actor, asked.query.org, asked.names["group"])


@endpoint("DELETE", "/groups/{group}/members/{member}", RemovedMember, query=Reason, fails=(404, 409))
async def remove_member(asked: Asked) -> dict[str, Any]:
    """Remove a member by its id, or its instance id: the others go on, it joins again if it is alive."""
    names, query = asked.names, asked.query
    return await actions.remove_member(
        asked.context, asked.actor, query.org, names["group"], names["member"], query.reason
    )


@endpoint("POST", "/topics", topic_models.Topic, query=OfOrg, body=NewTopic, fails=(409,))
async def create_topic(asked: Asked) -> dict[str, Any]:
    """Make a topic."""
    body, org = asked.body, asked.query.org
    await actions.create_topic(asked.context, asked.actor, org, body.topic, body.partition_count, body.configs)
    return await topic_views.topic(asked.context, org, body.topic)


@endpoint("DELETE", "/topics/{topic}", None, query=OfOrg, fails=(404,))
async def delete_topic(asked: Asked) -> None:
    """Remove a topic with its records and committed offsets; nothing brings them back."""
    await actions.delete_topic(asked.context, asked.actor, asked.query.org, asked.names["topic"])


@endpoint("POST", "/topics/{topic}/partitions", topic_models.Topic, query=OfOrg, body=Growth, fails=(404,))
async def add_partitions(asked: Asked) -> dict[str, Any]:
    """Let a topic grow; it never shrinks."""
    org, name = asked.query.org, asked.names["topic"]
    await actions.add_partitions(asked.context, asked.actor, org, name, asked.body.count)
    return await topic_views.topic(asked.context, org, name)


@endpoint("POST", "/topics/{topic}/trim", Trimmed, query=OfOrg, body=Trim, fails=(403, 404))
async def trim_topic(asked: Asked) -> dict[str, Any]:
    """Delete a topic's oldest records, by partition; nothing brings them back."""
    name = asked.names["topic"]
    before = {one.partition: one.before for one in asked.body.partitions}
    starts = await actions.trim_topic(asked.context, asked.actor, asked.query.org, name, before)
    return {
        "topic": name,
        "partitions": [{"partition": index, "log_start": start} for index, start in starts.items()],
    }


@endpoint("PATCH", "/topics/{topic}/configs", topic_models.Topic, query=OfOrg, body=ConfigChanges, fails=(404,))
async def alter_configs(asked: Asked) -> dict[str, Any]:
    """Set configs of a topic, and give others back their defaults."""
    org, name, body = asked.query.org, asked.names["topic"], asked.body
    await actions.alter_configs(asked.context, asked.actor, org, name, body.set, body.defaults)
    return await topic_views.topic(asked.context, org, name)
