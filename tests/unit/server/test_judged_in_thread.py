"""The rights to many names are judged in a thread, whatever array of whatever request they are in."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.wire import request_type
from tests.support.samples import sample
from tidegate.apis import registry
from tidegate.apis.call import Client
from tidegate.apis.slices import SLICE
from tidegate.errors import InvalidRequest, KafkaError
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import is_old
from tidegate.server.authorization.guard import Authorization
from tidegate.server.authorization.rules import RULES

MANY = 3 * SLICE
_ASKED_BESIDE = 5
"""Rights that a request needs besides those of each name."""
_JUDGED_BY_NAME = {
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_GROUPS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
}  # fmt: skip


class _Rights:
    """Allows everything; counts what is asked on the event loop, and elsewhere."""

    def __init__(self) -> None:
        self.rules = SimpleNamespace(version=0)
        self.super_users = frozenset[str]()
        self.on_loop = self.in_threads = 0

    def is_super_user(self, principal: str) -> bool:
        return False

    def allows(self, requester: Any, operation: Any, kind: Any, name: str = "") -> bool:
        if threading.current_thread() is threading.main_thread():
            self.on_loop += 1
        else:
            self.in_threads += 1
        return name != "kafka-cluster" and bool(name)  # not the cluster, whose rights save those of each topic


async def _judge(key: int, version: int, request: Any, topics: int = 0) -> _Rights:
    """What one request asks until its handler runs; so many topics exist."""
    rights, rest = _Rights(), list[asyncio.Task[None]]()
    known = [SimpleNamespace(name=f"topic-{n}") for n in range(topics)]
    catalog: Any = SimpleNamespace(
        version=0, get=lambda org, name: True, by_id=lambda org, topic_id: SimpleNamespace(name=topic_id.hex),
        topics=lambda org: known, topic_count=lambda org: len(known),
    )  # fmt: skip
    settings = SimpleNamespace(auto_create_topics_enable=True)
    context: Any = SimpleNamespace(catalog=catalog, settings=settings)
    call = SimpleNamespace(
        **dict.fromkeys(("drop", "close", "draining", "mute", "correlation_id", "reply")), run_alone=lambda: None,
        context=context, client=Client(1, "192.0.2.7", 1), arrived_s=0.0, org="default", api_key=key, version=version,
        client_id="app", start=0, end=50, answer_later=lambda work, _: rest.append(asyncio.create_task(work)),
    )  # fmt: skip

    def handler(call: Any, request: Any, *_: Any) -> Any:
        raise InvalidRequest

    authorizer: Any = rights
    api = dataclasses.replace(registry.load_all()[key], handler=handler, raw=False)
    guarded = Authorization(context, authorizer, lambda call, codes: None).guarded({key: api})[key].handler
    with suppress(KafkaError):
        done = guarded(call, request)
        if done is not None:
            await done
        await asyncio.gather(*rest)
    return rights


def _requests(key: int) -> Iterator[tuple[int, Any]]:
    """Requests of all versions with many names in each of their arrays, by turns."""
    api = registry.load_all()[key]
    for version in range(api.first, api.last + 1):
        if not is_old(key, version):
            codec.request_class(key, version)
            for request in _with_many(sample(request_type(key, version))):
                yield version, request


def _with_many(value: Any) -> Iterator[Any]:
    """A value with many things in one of its arrays, or in one of the first things of these."""
    for field in dataclasses.fields(value):
        inside = getattr(value, field.name)
        if dataclasses.is_dataclass(inside):
            yield from (dataclasses.replace(value, **{field.name: one}) for one in _with_many(inside))
        elif isinstance(inside, tuple) and inside:
            yield dataclasses.replace(value, **{field.name: tuple(_named(inside[0], n) for n in range(MANY))})
            if dataclasses.is_dataclass(inside[0]):
                for one in _with_many(inside[0]):
                    yield dataclasses.replace(value, **{field.name: (one,)})


def _named(value: Any, number: int) -> Any:
    """The same with its number in its names."""
    if isinstance(value, str):
        return f"{value}-{number}"
    if not dataclasses.is_dataclass(value):
        return value
    names = {field.name: f"~{number}" for field in dataclasses.fields(value) if type(getattr(value, field.name)) is str}
    return dataclasses.replace(value, **names)  # type: ignore[type-var]


@pytest.mark.parametrize("key", [key for key in RULES if key != ApiKey.PRODUCE], ids=lambda key: ApiKey(key).name)
async def test_rights_to_many_names_are_judged_in_a_thread(key: int) -> None:
    in_threads = 0
    for version, request in _requests(key):
        rights = await _judge(key, version, request)
        assert rights.on_loop <= SLICE + _ASKED_BESIDE, (version, request.__class__)
        in_threads = max(in_threads, rights.in_threads)

    assert (in_threads >= MANY) == (key in _JUDGED_BY_NAME)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS])
async def test_rights_to_all_topics_are_judged_in_a_thread(key: int) -> None:
    version = registry.load_all()[key].last
    whole = sample(request_type(key, version))
    request = dataclasses.replace(whole, topics=None if key == ApiKey.METADATA else ())

    few, many = await _judge(key, version, request, topics=10), await _judge(key, version, request, topics=MANY)

    assert (few.in_threads, many.on_loop) == (0, 0)
    assert many.in_threads >= MANY
