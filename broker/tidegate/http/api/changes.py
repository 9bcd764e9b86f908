"""REST endpoints of operators: they change state."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tidegate.http import actions, topic_views
from tidegate.http.api.endpoint import Asked, endpoint
from tidegate.http.models import topics as topic_models
from tidegate.http.models.base import Model, OfOrg


class Reason(OfOrg):
    """The reason, recorded in the group's events."""

    reason: str = Field(default="removed by an operator", max_length=255)


class RemovedMember(Model):
    """The removed member."""

    member_id: str
    client_id: str
    host: str


class NewTopic(Model):
    """A topic to create; without a count it gets the brokers' `num_partitions`."""

    topic: str
    partition_count: int | None = Field(default=None, ge=1)
    configs: dict[str, str] = Field(default_factory=dict)


class Growth(Model):
    """The new number of partitions."""

    count: int = Field(ge=1)


class TrimmedPartition(Model):
    """Delete records below `before`; null deletes all."""

    partition: int = Field(ge=0)
    before: int | None = Field(ge=0)


class Trim(Model):
    """The records of a topic to delete."""

    partitions: list[TrimmedPartition] = Field(min_length=1, max_length=1_000, fail_fast=True)


class LogStart(Model):
    """The new log start of a partition."""

    partition: int
    log_start: int


class Trimmed(Model):
    """The new log starts."""

    topic: str
    partitions: list[LogStart]


class ConfigChanges(Model):
    """Configs to set, and configs to reset to their defaults."""

    set: dict[str, str] = Field(default_factory=dict)
    defaults: list[str] = Field(default_factory=list)


@endpoint("POST", "/brokers/{node_id}/drain", None, fails=(404,))
async def drain_broker(asked: Asked) -> None:
    """Drain a broker as SIGTERM does; it starts within a second."""
    await actions.drain_broker(asked.context, asked.actor, asked.names["node_id"])


@endpoint("DELETE", "/groups/{group}", None, query=OfOrg, fails=(404, 409))
async def delete_group(asked: Asked) -> None:
    """Delete an empty group with its offsets."""
    await actions.delete_group(asked.context, asked.actor, asked.query.org, asked.names["group"])


@endpoint("DELETE", "/groups/{group}/members/{member}", RemovedMember, query=Reason, fails=(404, 409))
async def remove_member(asked: Asked) -> dict[str, Any]:
    """Remove a member by its id or instance id; the others rebalance, a live member rejoins."""
    names, query = asked.names, asked.query
    return await actions.remove_member(
        asked.context, asked.actor, query.org, names["group"], names["member"], query.reason
    )


@endpoint("POST", "/topics", topic_models.Topic, query=OfOrg, body=NewTopic, fails=(409,))
async def create_topic(asked: Asked) -> dict[str, Any]:
    """Create a topic."""
    body, org = asked.body, asked.query.org
    await actions.create_topic(asked.context, asked.actor, org, body.topic, body.partition_count, body.configs)
    return await topic_views.topic(asked.context, org, body.topic)


@endpoint("DELETE", "/topics/{topic}", None, query=OfOrg, fails=(404,))
async def delete_topic(asked: Asked) -> None:
    """Delete a topic with its records and committed offsets, irrevocably."""
    await actions.delete_topic(asked.context, asked.actor, asked.query.org, asked.names["topic"])


@endpoint("POST", "/topics/{topic}/partitions", topic_models.Topic, query=OfOrg, body=Growth, fails=(404,))
async def add_partitions(asked: Asked) -> dict[str, Any]:
    """Add partitions to a topic."""
    org, name = asked.query.org, asked.names["topic"]
    await actions.add_partitions(asked.context, asked.actor, org, name, asked.body.count)
    return await topic_views.topic(asked.context, org, name)


@endpoint("POST", "/topics/{topic}/trim", Trimmed, query=OfOrg, body=Trim, fails=(403, 404))
async def trim_topic(asked: Asked) -> dict[str, Any]:
    """Delete the oldest records of partitions, irrevocably."""
    name = asked.names["topic"]
    before = {one.partition: one.before for one in asked.body.partitions}
    starts = await actions.trim_topic(asked.context, asked.actor, asked.query.org, name, before)
    return {
        "topic": name,
        "partitions": [{"partition": index, "log_start": start} for index, start in starts.items()],
    }


@endpoint("PATCH", "/topics/{topic}/configs", topic_models.Topic, query=OfOrg, body=ConfigChanges, fails=(404,))
async def alter_configs(asked: Asked) -> dict[str, Any]:
    """Set configs of a topic, and reset others to their defaults."""
    org, name, body = asked.query.org, asked.names["topic"], asked.body
    await actions.alter_configs(asked.context, asked.actor, org, name, body.set, body.defaults)
    return await topic_views.topic(asked.context, org, name)
