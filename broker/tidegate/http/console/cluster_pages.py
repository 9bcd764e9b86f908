"""Pages of topics, brokers, Redis, producers and the audit."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from tidegate.audit import reading
from tidegate.cluster import audit
from tidegate.http import producer_views
from tidegate.http.broker_views import brokers
from tidegate.http.console.site import console_of, named, org_of, page
from tidegate.http.redis_views import redis
from tidegate.http.topic_views import topic, topics

TOPICS_MAX: Final = 1_000
ENTRIES_SHOWN: Final = 200
_TOPICS_ASKED_MAX: Final = 20
"""Topics that the producers page inspects, those with most records in Redis first."""
_PRODUCERS_SHOWN: Final = 200
_VALUE_LENGTH_MAX: Final = 200


async def topics_page(request: web.Request) -> web.StreamResponse:
    console, org = console_of(request), org_of(request)
    words = request.query.get("q", "").strip()
    found = await console.observe(("topics", org), lambda: topics(console.context, org, count_max=TOPICS_MAX))
    rows = [one for one in found if all(word in one["topic"].lower() for word in words.lower().split())]
    return await page(request, "topics.html", rows=rows, total=len(found), words=words, most=TOPICS_MAX)


async def topic_page(request: web.Request) -> web.StreamResponse:
    """One topic: partitions, configs, reading groups, producers."""
    console, org, name = console_of(request), org_of(request), named(request, "topic")
    found, writers = await asyncio.gather(
        topic(console.context, org, name), producer_views.producers(console.context, org, name)
    )
    readers = sorted(found["groups"], key=lambda one: one["lag"] or 0, reverse=True)
    return await page(request, "topic.html", topic=found, readers=readers, producers=_flat([writers]))


async def brokers_page(request: web.Request) -> web.StreamResponse:
    console = console_of(request)
    return await page(
        request, "brokers.html", brokers=await console.observe("brokers", lambda: brokers(console.context))
    )


async def redis_page(request: web.Request) -> web.StreamResponse:
    console = console_of(request)
    found = await console.observe("redis", lambda: redis(console.context))
    return await page(request, "redis.html", redis=found)


async def producers_page(request: web.Request) -> web.StreamResponse:
    """Transactions, and the producers with an id of the topics with most records."""
    console, org = console_of(request), org_of(request)
    every = await topics(console.context, org, count_max=TOPICS_MAX)
    asked = sorted(every, key=lambda one: -one["bytes"])[:_TOPICS_ASKED_MAX]
    reported = await asyncio.gather(*(producer_views.producers(console.context, org, one["topic"]) for one in asked))
    rows = _flat(reported)
    transactions = await producer_views.transactions(console.context, org)
    return await page(
        request,
        "producers_page.html",
        transactions=transactions["transactions"][:_PRODUCERS_SHOWN],
        transactions_left_out=max(transactions["total"] - _PRODUCERS_SHOWN, 0),
        producers=rows[:_PRODUCERS_SHOWN],
        left_out=max(len(rows) - _PRODUCERS_SHOWN, 0),
        topics_asked=len(asked),
        topics_total=len(every),
    )


def _flat(reported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per producer and partition, most recently active first."""
    rows = [
        {"topic": one["topic"], "partition": partition["partition"], **producer}
        for one in reported
        for partition in one["partitions"]
        for producer in partition["producers"]
    ]
    return sorted(rows, key=lambda row: -(row["last_active_ms"] or 0))


async def audit_page(request: web.Request) -> web.StreamResponse:
    """The audit, newest first."""
    store = console_of(request).context.store
    return await page(
        request,
        "audit.html",
        entries=[
            {**one, "argument_list": _named_values(one["arguments"]), "result_list": _named_values(one["result"])}
            for one in await audit.entries(store, ENTRIES_SHOWN)
        ],
        most=ENTRIES_SHOWN,
    )


async def audit_events_page(request: web.Request) -> web.StreamResponse:
    """The security audit, newest first, all of it or of one principal, or failures only."""
    context, who = console_of(request).context, request.query.get("who", "").strip()
    failed = request.query.get("failed", "") == "yes"
    events = await reading.newest(context.store, reading.EventFilter(who, failed), ENTRIES_SHOWN)
    return await page(
        request,
        "audit_events.html",
        rows=[reading.row(event) for event in events],
        who_asked=who,
        failed=failed,
        is_on=bool(context.settings.audit_stream_bytes),
        most=ENTRIES_SHOWN,
        searched_max=reading.SEARCHED_MAX,
    )


def _named_values(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values, shortened; false values are omitted."""
    return [(name.replace("_", " "), _in_short(value)) for name, value in values.items() if value]


def _in_short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = "; ".join(value)
    text = "yes" if value is True else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}…"
