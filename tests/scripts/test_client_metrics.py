"""Client metrics (KIP-714): subscriptions are configs, any broker takes a push, sums of the values are exported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import cramjam
import pytest
from kio.schema.errors import ErrorCode
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import client_metrics, cluster_admin, configs
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.telemetry.client_metrics import ClientMetrics
from tidegate.telemetry.metrics_payload import METRICS_MAX, PUSHED_BYTES_MAX

assert client_metrics and cluster_admin and configs  # registered

E = ErrorCode
CLIENT_METRICS = 16
SET, DELETE, APPEND = 0, 1, 2
GZIP, ZSTD = 1, 4


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers that take pushes."""
    async with brokers_of(settings.model_copy(update={"client_metrics_enabled": True}), 2) as opened:
        for broker in opened.all:
            assert broker.context.resource_configs is not None
            await broker.context.resource_configs.start()
        yield opened
        for broker in opened.all:
            assert broker.context.resource_configs is not None
            await broker.context.resource_configs.close()


async def _alter(brokers: Brokers, name: str, *changes: tuple[str, int, str | None]) -> ErrorCode:
    alterations = [
        {"name": config, "config_operation": operation, "value": value} for config, operation, value in changes
    ]
    resource = {
        "resource_type": CLIENT_METRICS, "resource_name": name, "configs": alterations,
    }  # fmt: skip
    answer = await brokers.ask(request(44, 1, resources=[resource], validate_only=False))
    for broker in brokers.all:
        assert broker.context.resource_configs is not None
        await broker.context.resource_configs.refresh()
    code: ErrorCode = answer.responses[0].error_code
    return code


async def _subscribe(brokers: Brokers, instance_id: UUID | None = None) -> Any:
    return await brokers.ask(request(71, 0, client_instance_id=instance_id))


async def _push(brokers: Brokers, subscription: Any, payload: bytes, **changed: Any) -> ErrorCode:
    values = {
        "client_instance_id": subscription.client_instance_id, "subscription_id": subscription.subscription_id,
        "terminating": False, "compression_type": 0, "metrics": payload, **changed,
    }  # fmt: skip
    code: ErrorCode = (await brokers.ask(request(72, 0, **values))).error_code
    return code


def _payload(**values: float) -> bytes:
    """A gauge for each value, and a counter."""
    data = MetricsData()
    metrics = data.resource_metrics.add().scope_metrics.add().metrics
    for name, value in values.items():
        one = metrics.add(name=name.replace("_", "."))
        one.gauge.data_points.add(as_double=value)
    metrics.add(name="org.apache.kafka.counter").sum.data_points.add(as_int=7)
    return bytes(data.SerializeToString())


async def test_client_metrics_are_pushed_to_any_broker(brokers: Brokers) -> None:
    assert await _alter(brokers, "all", ("metrics", SET, "org.apache.kafka."), ("interval.ms", SET, "1000")) is NONE
    subscription = await _subscribe(brokers)
    assert subscription.error_code is NONE
    assert subscription.client_instance_id
    assert subscription.requested_metrics == ("org.apache.kafka.",)
    assert subscription.push_interval.total_seconds() == 1
    assert subscription.telemetry_max_bytes == PUSHED_BYTES_MAX
    again = await _subscribe(brokers, subscription.client_instance_id)
    assert again.subscription_id == subscription.subscription_id

    payload = _payload(org_apache_kafka_latency=1.5)
    bodies = {0: payload, GZIP: bytes(cramjam.gzip.compress(payload)), ZSTD: bytes(cramjam.zstd.compress(payload))}
    for codec, body in bodies.items():
        assert await _push(brokers, subscription, body, compression_type=codec) is NONE
    sums, counts = {}, 0.0
    for broker in brokers.all:
        for labels, value in broker.context.client_metrics.sums().items():
            sums[labels] = sums.get(labels, 0.0) + value
        counts += sum(broker.context.client_metrics.counts().values())
    assert sums == {("org.apache.kafka.latency", "unknown"): 4.5, ("org.apache.kafka.counter", "unknown"): 21.0}
    assert counts == 6


async def test_client_metrics_pushes_that_are_refused(brokers: Brokers) -> None:
    assert await _alter(brokers, "all", ("metrics", SET, "*")) is NONE
    subscription = await _subscribe(brokers)
    assert subscription.requested_metrics == ("*",)
    payload = _payload()
    assert await _push(brokers, subscription, payload, subscription_id=7) is E.unknown_subscription_id
    assert await _push(brokers, subscription, payload, client_instance_id=None) is E.invalid_request
    assert await _push(brokers, subscription, payload, compression_type=9) is E.unsupported_compression_type
    assert await _push(brokers, subscription, b"\xff\xff") is E.invalid_record
    assert await _push(brokers, subscription, bytes(PUSHED_BYTES_MAX + 1)) is E.telemetry_too_large
    bomb = bytes(cramjam.gzip.compress(bytes(100 << 20)))
    assert await _push(brokers, subscription, bomb, compression_type=GZIP) is E.telemetry_too_large
    many = MetricsData()
    many.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.ParseFromString(b"\x0a\x00" * (3 << 20))
    points = bytes(cramjam.gzip.compress(bytes(many.SerializeToString())))
    assert len(points) < 10_000
    assert await _push(brokers, subscription, points, compression_type=GZIP) is E.telemetry_too_large
    assert await _alter(brokers, "all", ("metrics", DELETE, None)) is NONE
    assert await _push(brokers, subscription, payload) is E.unknown_subscription_id
    assert (await _subscribe(brokers)).requested_metrics == ()


async def test_client_metrics_match_clients(brokers: Brokers) -> None:
    software = "client_id=app|x,client_source_port=.*"
    assert await _alter(brokers, "some", ("metrics", SET, "a."), ("match", SET, software)) is NONE
    assert await _alter(brokers, "others", ("metrics", SET, "b."), ("match", SET, "client_id=other")) is NONE
    assert (await _subscribe(brokers)).requested_metrics == ("a.",)
    chosen = uuid4()
    assert await _alter(brokers, "others", ("match", SET, f"client_instance_id={chosen}")) is NONE
    assert (await _subscribe(brokers, chosen)).requested_metrics == ("a.", "b.")


async def test_client_metrics_configs(brokers: Brokers) -> None:
    """Scenario 148 of logs, of client metrics."""
    assert await _alter(brokers, "s", ("interval.ms", SET, "1")) is E.invalid_request
    assert await _alter(brokers, "s", ("nope", SET, "1")) is E.invalid_request
    assert await _alter(brokers, "s", ("match", SET, "nope=x")) is E.invalid_config
    assert await _alter(brokers, "s", ("match", SET, "client_id=(")) is E.invalid_config
    assert await _alter(brokers, "s", ("match", SET, r"client_id=(a)\1")) is E.invalid_config  # not one of RE2
    assert await _alter(brokers, "s", ("interval.ms", APPEND, "1")) is E.invalid_config
    assert await _alter(brokers, "", ("interval.ms", SET, "1000")) is E.invalid_request
    assert await _alter(brokers, "s", ("metrics", SET, "a."), ("interval.ms", SET, " 1000 ")) is NONE
    assert await _alter(brokers, "s", ("metrics", APPEND, "b.")) is NONE
    listed = await brokers.ask(request(74, 0))
    assert [one.resource_name for one in listed.config_resources] == ["s"]
    resource = {
        "resource_type": CLIENT_METRICS, "resource_name": "s",
        "configuration_keys": None,
    }  # fmt: skip
    answer = await brokers.ask(
        request(32, 4, resources=[resource], include_synonyms=False, include_documentation=False)
    )
    found = {one.name: (one.value, one.config_source) for one in answer.results[0].configs}
    assert found == {"interval.ms": ("1000", 7), "match": ("", 5), "metrics": ("a.,b.", 7)}


@pytest.mark.parametrize("kind", ["same", "others"])
async def test_client_metrics_changes_at_the_same_time_are_all_made(brokers: Brokers, kind: str) -> None:
    """Each broker appends to the list that its cache has: of one subscription, or among changes of others."""
    elsewhere = [] if kind == "same" else [("s2", "c."), ("s3", "d."), ("s4", "e.")]
    changes = [("s", "a."), ("s", "b."), *elsewhere]

    codes = await asyncio.gather(*(_alter(brokers, name, ("metrics", APPEND, added)) for name, added in changes))

    assert codes == [NONE] * len(changes)
    stored = brokers.all[0].context.resource_configs
    assert stored is not None
    assert set(stored.of("client-metrics", "s")["metrics"].split(",")) == {"a.", "b."}
    assert [stored.of("client-metrics", name) for name, _ in elsewhere] == [{"metrics": one} for _, one in elsewhere]


async def test_client_metrics_belong_to_the_default_org(brokers: Brokers) -> None:
    assert await _alter(brokers, "secret", ("match", SET, "client_id=payments-.*")) is E.none
    wanted = {"resource_type": CLIENT_METRICS, "resource_name": "secret", "configuration_keys": None}
    describe = request(
        32, 4, resources=[{**wanted}], include_synonyms=True,
        include_documentation=False,
    )  # fmt: skip
    answered = {}
    for org in ("default", "acme"):
        client = brokers.all[0].client(org=org)
        listed = await client.ask(request(74, 1, resource_types=[CLIENT_METRICS]))
        (described,) = (await client.ask(describe)).results
        assert described.error_code is E.none
        answered[org] = [one.resource_name for one in listed.config_resources], "payments" in repr(described)

    assert answered == {"default": (["secret"], True), "acme": ([], False)}


async def test_client_metrics_are_not_asked_for_by_default(store: Store, settings: Settings) -> None:
    async with brokers_of(settings, 1) as brokers:
        answer = await brokers.ask(request(18, 3, client_software_name="t", client_software_version="1"))
        assert not {71, 72} & {one.api_key for one in answer.api_keys}
        subscription = await _subscribe(brokers)
        assert (subscription.error_code, subscription.requested_metrics) == (NONE, ())
        assert await _push(brokers, subscription, _payload()) is NONE
        assert brokers.all[0].context.client_metrics.sums() == {}


def test_client_metrics_labels_are_bounded() -> None:
    metrics = ClientMetrics()
    metrics.add({f"m{number}": (1.0, 1) for number in range(METRICS_MAX + 10)}, "librdkafka")
    metrics.add({'"}\n': (1.0, 1)}, "librdkafka")
    assert len(metrics.sums()) == METRICS_MAX + 1
    assert metrics.sums()["other", "librdkafka"] == 11
