"""The answer of DescribeConfigs in pieces: as kio writes it, and equal configs once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.frames import decode_body
from tidegate.apis import configs, described_configs
from tidegate.apis.described_configs import DescribedConfigs
from tidegate.protocol.versions import Fields
from tidegate.topics.config_keys import ConfigType
from tidegate.topics.configs import Described, Source, Synonym

REQUEST = Fields(include_synonyms=True, include_documentation=True)


def described(value: str) -> list[Described]:
    """Two configs, of which the first has been set."""
    synonyms = Synonym("a.ms", value, Source.GROUP), Synonym("a.ms", "1", Source.DEFAULT)
    default = (Synonym("b", "x", Source.DEFAULT),)
    return [
        Described("a.ms", ConfigType.INT, value, Source.GROUP, "What it is", synonyms),
        Described("b", ConfigType.STRING, "x", Source.DEFAULT, "What that is", default, read_only=True),
    ]


def resource(name: str, *keys: str) -> Fields:
    return Fields(resource_type=32, resource_name=name, configuration_keys=keys or None)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_described_configs_are_read_as_they_were_added(version: int) -> None:
    answer = DescribedConfigs(version, REQUEST)
    answer.add(resource("g"), described("5"), ErrorCode.none, None)
    answer.add(resource("h", "b", "c"), described("6"), ErrorCode.none, None)
    answer.add(resource("i"), (), ErrorCode.invalid_request, "no")
    answer.add(resource("j"), described("5"), ErrorCode.none, None)
    body = b"".join(answer.parts())

    response = decode_body(32, version, body)

    named = {one.resource_name: one for one in response.results}
    assert [*named] == ["g", "h", "i", "j"]
    assert (named["i"].error_code, named["i"].error_message, named["i"].configs) == (
        ErrorCode.invalid_request, "no", (),
    )  # fmt: skip
    assert named["g"].configs == named["j"].configs
    first, second = named["g"].configs
    assert (first.name, first.value, first.config_source, second.read_only) == ("a.ms", "5", Source.GROUP, True)
    assert [(one.name, one.value, one.source) for one in first.synonyms] == [
        ("a.ms", "5", Source.GROUP), ("a.ms", "1", Source.DEFAULT),
    ]  # fmt: skip
    assert [one.name for one in named["h"].configs] == ["b"]
    if version >= 3:
        assert (first.config_type, first.documentation) == (ConfigType.INT, "What it is")


def test_described_configs_of_many_resources_share_their_bytes() -> None:
    answer = DescribedConfigs(4, REQUEST)
    for number in range(10_000):
        answer.add(resource(f"group-{number}"), described("5"), ErrorCode.none, None)

    shared = {id(part): len(part) for part in answer.parts()}

    names = sum(len(f"group-{number}") for number in range(10_000))
    assert sum(shared.values()) < names + 10_000 * 8 < sum(map(len, answer.parts())) / 4


def test_described_configs_without_a_resource() -> None:
    for version in (3, 4):
        body = b"".join(DescribedConfigs(version, REQUEST).parts())
        assert decode_body(32, version, body).results == ()


async def described_by(call: Any, resources: list[Any]) -> tuple[list[bytes], Any]:
    request: Any = Fields(REQUEST, resources=resources)
    parts: Any = await configs.describe_configs(call, request)
    return parts, decode_body(32, 4, b"".join(parts)).results


async def test_describe_configs_resource_named_twice_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    async def configs_of(call: Any, one: Any) -> list[Described]:
        reads.append(one.resource_name)
        return described(one.resource_name)

    monkeypatch.setattr(configs, "_configs_of", configs_of)
    call: Any = SimpleNamespace(version=4)
    wanted = [resource("g"), resource("h"), resource("g"), resource("g", "b"), resource("g")]

    parts, results = await described_by(call, wanted)

    assert reads == ["g", "h", "g"]
    assert [one.resource_name for one in results] == ["g", "h", "g", "g", "g"]
    assert results[0] == results[2] == results[4] != results[3]
    assert len({id(part) for part in parts}) < len(parts)


async def test_describe_configs_beyond_the_bytes_of_an_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def configs_of(call: Any, one: Any) -> list[Described]:
        return described("5" * 1_000)

    monkeypatch.setattr(configs, "_configs_of", configs_of)
    monkeypatch.setattr(described_configs, "ANSWER_BYTES_MAX", 20_000)
    call: Any = SimpleNamespace(version=4)

    parts, results = await described_by(call, [resource(f"g-{number % 50}") for number in range(100)])

    answered = [one for one in results if one.error_code is ErrorCode.none]
    assert 5 < len(answered) < 20 and results[: len(answered)] == tuple(answered)
    assert {one.error_code for one in results[len(answered) :]} == {ErrorCode.request_timed_out}
    assert [one.resource_name for one in results] == [f"g-{number % 50}" for number in range(100)]
    assert sum(map(len, parts)) < 20_000 + 3_000 + 100 * 100
