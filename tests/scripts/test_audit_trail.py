"""The audit trail: written in batches, bounded, and what it notes of requests."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis import registry
from tidegate.apis.call import Client
from tidegate.audit import trail as trail_module
from tidegate.audit.trail import AuditTrail
from tidegate.errors import ClusterAuthorizationFailed, StoreUnavailable
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.server.audited_requests import CHANGES, Auditing, codes_of
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

EVENT = {"class_uid": 6003, "status": "Success"}


def opened(store: Store, **settings: Any) -> AuditTrail:
    found = AuditTrail.of(store, store.settings.model_copy(update=settings), lambda: "1")
    assert found is not None
    return found


async def stream(store: Store) -> list[Any]:
    entries = await store.command("XRANGE", store.cluster_keys.audit_events, "-", "+")
    return [json.loads(fields[1]) for _, fields in entries]


def test_no_place_no_trail(store: Store) -> None:
    assert AuditTrail.of(store, store.settings, lambda: "1") is None


async def test_events_are_written_in_order_to_stream_and_file(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    trail = opened(store, audit_stream_bytes=1 << 20, audit_file=str(file))
    for number in range(1_200):  # more than two batches
        trail.note(EVENT | {"number": number})
    await trail.close()

    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["number"] for one in written] == list(range(1_200))
    assert written == await stream(store)
    assert {one["device"]["name"] for one in written} == {"1"}


async def test_stream_is_bounded_by_its_memory(store: Store) -> None:
    trail = opened(store, audit_stream_bytes=200_000)
    for _ in range(20):
        for _ in range(100):
            trail.note(EVENT | {"text": "x" * 500})
        await trail.flush()

    assert await store.command("MEMORY", "USAGE", store.cluster_keys.audit_events) < 300_000
    assert 100 < len(await stream(store)) < 1_000


async def test_file_is_rotated(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.audit.trail.FILE_BYTES", 50_000)
    file = tmp_path / "audit.jsonl"
    trail = opened(store, audit_file=str(file))
    for _ in range(1_000):
        trail.note(EVENT | {"text": "x" * 500})
    await trail.close()

    sizes = {one.name: one.stat().st_size for one in os.scandir(tmp_path)}
    assert sizes.keys() == {"audit.jsonl", *(f"audit.jsonl.{n}" for n in range(1, 5))}
    assert max(sizes.values()) <= 51_000


async def test_events_beyond_the_bound_are_dropped_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_module, "WAITING_MAX", 10)
    trail, before = opened(store, audit_stream_bytes=1 << 20), metrics.audit_events_dropped
    for _ in range(25):
        trail.note(EVENT)
    await trail.flush()

    assert len(await stream(store)) == 10
    assert metrics.audit_events_dropped - before == 15


async def test_events_that_redis_refuses_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise StoreUnavailable("away")

    trail, before = opened(store, audit_stream_bytes=1 << 20), metrics.audit_events_dropped
    trail.note(EVENT)
    monkeypatch.setattr(store, "run", away)
    await trail.flush()

    assert metrics.audit_events_dropped - before == 1


async def test_equal_denials_are_one_event_with_a_count(store: Store) -> None:
    """A consumer that is denied polls again and again."""
    context = build_broker(store).context
    trail = opened(store, audit_stream_bytes=1 << 20)
    auditing = Auditing(trail)

    class Denied:
        client, client_id, api_key = Client(1, "192.0.2.7", 1, principal="User:mallory"), "app", 1

    for _ in range(1_000):
        auditing.denied(Denied, [ErrorCode.topic_authorization_failed] * 3)  # type: ignore[arg-type]
    await trail.flush()

    [event] = await stream(store)
    assert (event["count"], event["status_detail"]) == (1_000, "TOPIC_AUTHORIZATION_FAILED")
    assert event["actor"]["user"]["name"] == "User:mallory"
    assert context.audit is None


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        (ApiKey.DELETE_TOPICS, {"topics": ()}),
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, {"deletions": (), "upsertions": ()}),
    ],
)
async def test_equal_denials_of_changes_are_one_event_with_a_count(store: Store, key: ApiKey, asked: Any) -> None:
    """Who may do nothing must not fill the trail with refusals."""
    trail = opened(store, audit_stream_bytes=1 << 20)

    async def refuse(call: Any, asked: Any) -> Any:
        raise ClusterAuthorizationFailed

    api = dataclasses.replace(registry.load_all()[key], handler=refuse)
    handler = Auditing(trail).audited({key: api})[key].handler
    client = Client(1, "192.0.2.7", 1, principal="User:mallory")
    for number in range(1_000):
        named = {name: (Fields(name=f"name-{number}"),) for name in asked}
        with pytest.raises(ClusterAuthorizationFailed):
            await handler(SimpleNamespace(client=client, client_id="app", api_key=key), Fields(**named))
    await trail.flush()

    [event] = await stream(store)
    assert (event["count"], event["status_detail"]) == (1_000, "CLUSTER_AUTHORIZATION_FAILED")


async def delete_topics(trail: AuditTrail, codes: Sequence[ErrorCode], requests: Iterable[Fields]) -> None:
    """Audit DeleteTopics requests of mallory's, each answered with these codes."""

    async def answer(call: Any, asked: Any) -> Any:
        return Fields(responses=tuple(Fields(error_code=code) for code in codes))

    key = ApiKey.DELETE_TOPICS
    api = dataclasses.replace(registry.load_all()[key], handler=answer)
    handler = Auditing(trail).audited({key: api})[key].handler
    client = Client(1, "192.0.2.7", 1, principal="User:mallory")
    for asked in requests:
        call: Any = SimpleNamespace(client=client, client_id="app", api_key=key)
        await handler(call, asked)
    await trail.flush()


@pytest.mark.parametrize("codes", [(), (ErrorCode.unknown_topic_id,)])
async def test_requests_that_change_nothing_are_one_event_with_a_count(
    store: Store, codes: tuple[ErrorCode, ...]
) -> None:
    """Without names, or with topic ids that do not exist, a request needs no right."""
    trail = opened(store, audit_stream_bytes=1 << 20)

    await delete_topics(trail, codes, [Fields(topics=())] * 1_000)

    [event] = await stream(store)
    assert event["count"] == 1_000


async def test_change_denied_in_part_is_an_event_of_its_own(store: Store) -> None:
    """The other part has changed something."""
    trail = opened(store, audit_stream_bytes=1 << 20)
    codes = (ErrorCode.none, ErrorCode.topic_authorization_failed)

    await delete_topics(trail, codes, [Fields(topics=(Fields(name=name),)) for name in ("a", "b")])

    assert [event["resources"] for event in await stream(store)] == [
        [{"type": "topic", "name": name}] for name in ("a", "b")
    ]


async def test_changes_are_noted_with_their_outcome(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    context = build_broker(store).context
    await context.catalog.start()
    trail = opened(store, audit_stream_bytes=1 << 20)
    audited = Auditing(trail).audited(registry.load_all())
    monkeypatch.setattr(registry, "load_all", lambda: audited)
    quotas = request(
        49, 1, validate_only=False,
        entries=[
            {"entity": [{"entity_type": "user", "entity_name": name}],
             "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}]}
            for name, value in (("alice", 5.0), ("bob", -5.0))
        ],
    )  # fmt: skip
    await ask(context, quotas, Client(1, "192.0.2.7", 1, principal="User:admin", org="acme"))
    await trail.flush()
    await context.catalog.close()

    [event] = await stream(store)
    assert event["api"]["operation"] == "alter_client_quotas"
    assert event["resources"] == [{"type": "quota", "name": "user=alice"}, {"type": "quota", "name": "user=bob"}]
    assert (event["status"], event["status_detail"]) == ("Failure", "INVALID_REQUEST")
    assert event["actor"] == {"user": {"name": "User:admin", "org": {"name": "acme"}}, "invoked_by": "test"}


def test_every_changing_api_is_served_by_a_task() -> None:
    """The wrapper is for coroutines."""
    served = registry.load_all()

    assert all(not served[key].inline for key in CHANGES)


async def test_error_codes_are_found_at_every_depth() -> None:
    deep = Fields(
        error_code=ErrorCode.none, topics=(Fields(partitions=(Fields(error_code=ErrorCode.invalid_request),)),)
    )

    assert await codes_of(deep) == [ErrorCode.none, ErrorCode.invalid_request]


def test_settings_have_no_audit_by_default() -> None:
    assert (Settings().audit_file, Settings().audit_stream_bytes) == ("", 0)
