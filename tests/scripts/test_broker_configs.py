"""Configs of brokers that change at run time: stored, followed by every broker, shown with their sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.http import topic_views
from tidegate.settings import Settings
from tidegate.store.store import Store

E = ErrorCode
WAIT_S = 20
BROKER, LOGGER, TOPIC = 4, 8, 2
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OWN, OF_ALL, STATIC, DEFAULT = 2, 3, 4, 5


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t`, which follow the configs of brokers."""
    async with brokers_of(settings, 2) as opened:
        for broker in opened.all:
            assert broker.context.resource_configs is not None
            await broker.context.resource_configs.start()
        await opened.create("t")
        yield opened
        for broker in opened.all:
            assert broker.context.resource_configs is not None
            await broker.context.resource_configs.close()


async def _alter(
    brokers: Brokers, broker: int, name: str, *changes: tuple[str, int, str | None], kind: int = BROKER
) -> ErrorCode:
    code: ErrorCode = (await _altered(brokers, broker, name, *changes, kind=kind)).error_code
    return code


async def _altered(
    brokers: Brokers, broker: int, name: str, *changes: tuple[str, int, str | None], kind: int = BROKER
) -> Any:
    configs = [{"name": config, "config_operation": operation, "value": value} for config, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await brokers.clients[broker].ask(request(44, 1, resources=[resource], validate_only=False))
    return answer.responses[0]


async def _described(brokers: Brokers, broker: int, kind: int, name: str) -> dict[str, tuple[str, int]]:
    resource = {
        "resource_type": kind, "resource_name": name, "configuration_keys": None,
    }  # fmt: skip
    answer = await brokers.clients[broker].ask(
        request(32, 4, resources=[resource], include_synonyms=True, include_documentation=False)
    )
    assert answer.results[0].error_code is NONE
    return {one.name: (one.value, one.config_source) for one in answer.results[0].configs}


async def _until(brokers: Brokers, broker: int, expected: tuple[str, int], config: str = "retention.ms") -> None:
    """Wait until a broker shows this value of the topic's config."""
    async with asyncio.timeout(WAIT_S):
        while (await _described(brokers, broker, TOPIC, "t"))[config] != expected:
            await asyncio.sleep(0.01)


async def test_broker_configs_of_all_are_followed_by_every_broker(brokers: Brokers) -> None:
    before = (await _described(brokers, 0, TOPIC, "t"))["retention.ms"]
    assert await _alter(brokers, 0, "", ("log.retention.ms", SET, "5000")) is NONE
    for broker in (0, 1):
        await _until(brokers, broker, ("5000", OF_ALL))
        topic = brokers.all[broker].context.catalog.get("default", "t")
        assert topic is not None and topic.config.retention_ms == 5000
    assert await _described(brokers, 1, BROKER, "") == {"log.retention.ms": ("5000", OF_ALL)}
    assert (await _described(brokers, 1, BROKER, "2"))["log.retention.ms"] == ("5000", OF_ALL)

    assert await _alter(brokers, 1, "", ("log.retention.ms", DELETE, None)) is NONE
    for broker in (0, 1):
        await _until(brokers, broker, before)
    assert await _described(brokers, 0, BROKER, "") == {}


async def test_broker_configs_of_one_precede_those_of_all(brokers: Brokers) -> None:
    assert await _alter(brokers, 0, "", ("message.max.bytes", SET, "2000")) is NONE
    assert await _alter(brokers, 0, "1", ("message.max.bytes", SET, "1000")) is NONE
    await _until(brokers, 0, ("1000", OWN), "max.message.bytes")
    await _until(brokers, 1, ("2000", OF_ALL), "max.message.bytes")
    assert (await _described(brokers, 0, BROKER, "1"))["message.max.bytes"] == ("1000", OWN)
    assert await _alter(brokers, 0, "1", ("message.max.bytes", DELETE, None)) is NONE
    await _until(brokers, 0, ("2000", OF_ALL), "max.message.bytes")


async def test_broker_configs_yield_to_those_of_a_topic(brokers: Brokers) -> None:
    await brokers.create("own", retention_ms="7")
    assert await _alter(brokers, 0, "", ("log.retention.ms", SET, "5000")) is NONE
    await _until(brokers, 0, ("5000", OF_ALL))
    assert (await _described(brokers, 0, TOPIC, "own"))["retention.ms"] == ("7", 1)


async def test_broker_configs_that_are_refused_change_nothing(brokers: Brokers) -> None:
    for change in (
        ("node.id", SET, "7"), ("redis.url", SET, "x"), ("nope", SET, "1"), ("log.retention.ms", SET, None),
        ("log.retention.ms", SET, "soon"), ("log.retention.ms", APPEND, "1"), ("log.retention.ms", 9, "1"),
    ):  # fmt: skip
        assert await _alter(brokers, 0, "", ("message.max.bytes", SET, "9"), change) is E.invalid_request, change
    assert await _alter(brokers, 0, "2", ("log.retention.ms", SET, "1")) is E.invalid_request
    assert await _alter(brokers, 0, "abc", ("log.retention.ms", SET, "1")) is E.invalid_request
    assert await _described(brokers, 0, BROKER, "") == {}


@pytest.mark.parametrize(
    ("config", "value", "reason"),
    [
        ("cleanup.policy", "compact", "is a config of topics; the brokers' default of it is log.cleanup.policy"),
        ("log.cleanup.polcy", "x", "cannot be changed at run time: a broker reads its settings when it starts"),
        ("log.retention.ms", "-5", "-5 is not between -1 and 9223372036854775807"),
    ],
)
async def test_broker_configs_that_no_broker_has_are_refused(
    brokers: Brokers, config: str, value: str, reason: str
) -> None:
    before = await _described(brokers, 0, BROKER, "")
    refused = await _altered(brokers, 0, "", (config, SET, value))
    assert refused.error_code is E.invalid_request
    assert refused.error_message.startswith(config) and refused.error_message.endswith(reason)
    assert await _described(brokers, 0, BROKER, "") == before


async def test_broker_configs_lists_and_replacement(brokers: Brokers) -> None:
    assert await _alter(brokers, 0, "", ("log.cleanup.policy", APPEND, "compact")) is NONE
    await _until(brokers, 1, ("delete,compact", OF_ALL), "cleanup.policy")
    resource: dict[str, Any] = {"resource_type": BROKER, "resource_name": ""}
    resource["configs"] = [{"name": "log.retention.ms", "value": "4000"}]
    answer = await brokers.clients[0].ask(request(33, 2, resources=[resource], validate_only=False))
    assert answer.responses[0].error_code is NONE
    await _until(brokers, 1, ("4000", OF_ALL))
    assert await _described(brokers, 1, BROKER, "") == {"log.retention.ms": ("4000", OF_ALL)}


async def test_broker_configs_changes_of_a_list_at_the_same_time_are_both_made(brokers: Brokers) -> None:
    assert await _alter(brokers, 0, "", ("log.cleanup.policy", SET, "delete")) is NONE
    await _until(brokers, 1, ("delete", OF_ALL), "cleanup.policy")

    codes = await asyncio.gather(
        _alter(brokers, 0, "", ("log.cleanup.policy", APPEND, "compact")),
        _alter(brokers, 1, "", ("log.cleanup.policy", SUBTRACT, "delete")),
    )

    assert codes == [NONE, NONE]
    await _until(brokers, 0, ("compact", OF_ALL), "cleanup.policy")


async def test_broker_loggers_level(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 148 of logs, of loggers."""
    levels: list[str] = []
    monkeypatch.setattr("tidegate.telemetry.logs.set_level", levels.append)

    async def alter(*changes: tuple[str, int, str | None], name: str = "1") -> ErrorCode:
        return await _alter(brokers, 0, name, *changes, kind=LOGGER)

    assert await _described(brokers, 0, LOGGER, "1") == {"root": ("INFO", 6)}
    assert await alter(("root", SET, "DEBUG")) is NONE
    assert await _described(brokers, 0, LOGGER, "1") == {"root": ("DEBUG", 6)}
    assert await _described(brokers, 1, LOGGER, "2") == {"root": ("INFO", 6)}
    assert levels == ["debug"]
    assert await alter(("root", SET, "FOO")) is E.invalid_config
    assert await alter(("org.apache.kafka", SET, "INFO")) is E.invalid_config
    assert await alter(("root", DELETE, None)) is E.invalid_request
    assert await alter(("root", APPEND, "INFO")) is E.invalid_request
    assert await alter(("root", SET, "WARN"), name="2") is E.invalid_request
    assert levels == ["debug"]


@pytest.mark.parametrize(("kind", "name"), [(BROKER, ""), (BROKER, "1"), (LOGGER, "1"), (16, "s")])
async def test_broker_configs_refuse_other_orgs(brokers: Brokers, kind: int, name: str) -> None:
    brokers.clients[0] = brokers.all[0].client(org="acme")
    change = ("log.retention.ms", SET, "5")
    assert await _alter(brokers, 0, name, change, kind=kind) is E.cluster_authorization_failed


async def test_broker_configs_of_a_topic_are_shown_over_http(brokers: Brokers) -> None:
    assert await _alter(brokers, 0, "", ("log.retention.ms", SET, "5000")) is NONE
    await _until(brokers, 0, ("5000", OF_ALL))
    found = await topic_views.topic(brokers.all[0].context, "default", "t")
    assert found is not None
    assert [(one["value"], one["source"]) for one in found["configs"] if one["name"] == "retention.ms"] == [
        ("5000", "broker")
    ]
