"""REST endpoints of viewers: they read state."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import Field

from tidegate.audit import reading
from tidegate.cluster import audit
from tidegate.http import broker_views, group_views, overview_views, producer_views, redis_views, topic_views
from tidegate.http.api.endpoint import Asked, endpoint
from tidegate.http.models import cluster as cluster_models
from tidegate.http.models import groups as group_models
from tidegate.http.models import topics as topic_models
from tidegate.http.models.base import Nothing, OfOrg


class PageQuery(OfOrg):
    """A page of a list: at most `limit` items after `after`."""

    after: str = ""
    limit: int = Field(default=1_000, ge=1, le=10_000)


class Count(OfOrg):
    """Maximum number of items, newest first."""

    count: int = Field(default=100, ge=1, le=10_000)


class AuditCount(Nothing):
    """Maximum number of items, newest first."""

    count: int = Field(default=100, ge=1, le=1_000)


class EventsAsked(AuditCount):
    """The newest events: of one principal, or failures only, where asked for."""

    who: str = ""
    failed: bool = False


class Partitions(OfOrg):
    """Partitions from `first` on."""

    first: int = Field(default=0, ge=0)
    limit: int = Field(default=topic_views.PARTITIONS_MAX, ge=1, le=topic_views.PARTITIONS_MAX)


class FewPartitions(Partitions):
    """As `Partitions`, with a lower limit because finding producers may read logs."""

    limit: int = Field(default=producer_views.PARTITIONS_MAX, ge=1, le=producer_views.PARTITIONS_MAX)


@endpoint("GET", "/overview", cluster_models.Overview, query=OfOrg, shared=True)
async def get_overview(asked: Asked) -> dict[str, Any]:
    """Current problems of groups, brokers and Redis, most severe first."""
    return await overview_views.overview(asked.context, asked.query.org)


@endpoint("GET", "/groups", group_models.Groups, query=PageQuery, shared=True)
async def list_groups(asked: Asked) -> dict[str, Any]:
    """Groups with their problems."""
    org, after, limit = asked.query.org, asked.query.after, asked.query.limit
    found, behind = await group_views.view_page(asked.context, org, after, limit)
    return {"groups": await group_views.all_listed(found), "next": behind}


@endpoint("GET", "/groups/{group}", group_models.Group, query=OfOrg, fails=(404,))
async def get_group(asked: Asked) -> dict[str, Any]:
    """One group in full: identity, state, members, partitions."""
    found = await group_views.view(asked.context, asked.query.org, asked.names["group"])
    return await asyncio.to_thread(group_views.described, found)


@endpoint("GET", "/groups/{group}/history", group_models.History, query=Count, fails=(404,))
async def get_group_history(asked: Asked) -> dict[str, Any]:
    """A group's rebalances and events, newest first; also of a deleted group, while they are retained."""
    return await group_views.history(asked.context, asked.query.org, asked.names["group"], asked.query.count)


@endpoint("GET", "/groups/{group}/explain", group_models.Explanation, query=OfOrg, fails=(404,))
async def explain_group(asked: Asked) -> dict[str, Any]:
    """Findings about a group: problems, their causes and remedies."""
    found = await group_views.view(asked.context, asked.query.org, asked.names["group"])
    return await asyncio.to_thread(group_views.explained, found)


@endpoint("GET", "/topics", topic_models.Topics, query=PageQuery)
async def list_topics(asked: Asked) -> dict[str, Any]:
    """Topics with their size in Redis."""
    org, after, limit = asked.query.org, asked.query.after, asked.query.limit
    rows = await topic_views.topics(asked.context, org, after, limit)
    return {"topics": rows, "next": rows[-1]["topic"] if len(rows) == limit else None}


@endpoint("GET", "/topics/{topic}", topic_models.Topic, query=Partitions, fails=(404,))
async def get_topic(asked: Asked) -> dict[str, Any]:
    """One topic: partitions from `first` on, configs with their source, groups that read these partitions."""
    query = asked.query
    return await topic_views.topic(asked.context, query.org, asked.names["topic"], query.first, query.limit)


@endpoint("GET", "/topics/{topic}/producers", topic_models.Producers, query=FewPartitions, fails=(404,))
async def get_producers(asked: Asked) -> dict[str, Any]:
    """Idempotent producers of a topic, by partition."""
    query = asked.query
    return await producer_views.producers(asked.context, query.org, asked.names["topic"], query.first, query.limit)


@endpoint("GET", "/transactions", topic_models.Transactions, query=OfOrg)
async def list_transactions(asked: Asked) -> dict[str, Any]:
    """Transactional ids with the state of their last transaction, those in progress first."""
    return await producer_views.transactions(asked.context, asked.query.org)


@endpoint("GET", "/brokers", cluster_models.Brokers)
async def list_brokers(asked: Asked) -> dict[str, Any]:
    """Every broker that has a lease."""
    live = await broker_views.brokers(asked.context)
    return {"cluster_id": asked.context.broker_lease.cluster_id, "brokers": live}


@endpoint("GET", "/redis", cluster_models.Redis)
async def get_redis(asked: Asked) -> dict[str, Any]:
    """The Redis server: memory by owner, persistence, eviction, replicas, latency."""
    return await redis_views.redis(asked.context)


@endpoint("GET", "/audit", cluster_models.Audit, query=AuditCount)
async def list_actions(asked: Asked) -> dict[str, Any]:
    """Changes and attempted changes by administrators, newest first."""
    return {"actions": await audit.entries(asked.context.store, asked.query.count)}


@endpoint("GET", "/audit/events", cluster_models.AuditEvents, query=EventsAsked)
async def list_audit_events(asked: Asked) -> dict[str, Any]:
    """Events of the security audit, newest first, with `audit_stream_bytes` set."""
    wanted = reading.EventFilter(asked.query.who, asked.query.failed)
    events = await reading.newest(asked.context.store, wanted, asked.query.count)
    return {"events": [reading.row(event) for event in events]}
