"""The audit of a large request runs in slices, so that the event loop serves others; it names what failed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call, Client
from tidegate.apis.registry import load_all
from tidegate.apis.slices import SLICE
from tidegate.audit.ocsf import RESOURCES_MAX
from tidegate.errors import ClusterAuthorizationFailed
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.versions import Fields
from tidegate.server.audited_requests import Auditing

COUNT = 20_000
CALL = cast(Call, SimpleNamespace(client=Client(1, "192.0.2.7", 1), client_id="app", version=2))
CODES = [ErrorCode.none, ErrorCode.offset_out_of_range, ErrorCode.kafka_storage_error]


def delete_records_answer() -> Any:
    partitions = tuple(
        Fields(partition_index=index, low_watermark=0, error_code=CODES[index % 3]) for index in range(COUNT)
    )
    return Fields(throttle_time=NO_TIME, topics=(Fields(name="t", partitions=partitions),))


async def events_of(api_key: ApiKey, answer: Callable[[], Any], request: Any) -> tuple[list[Any], int]:
    """The events of one request, and the iterations of the event loop until it is answered."""

    async def handler(call: Call, request: Any) -> Any:
        return answer()

    events: list[Any] = []
    trail = cast(Any, SimpleNamespace(note=events.append, note_repeatable=lambda _, event: events.append(event())))
    api = dataclasses.replace(load_all()[api_key], handler=handler)
    answered = asyncio.ensure_future(Auditing(trail).audited({api_key: api})[api_key].handler(CALL, request))
    iterations = 0
    while not answered.done():
        iterations += 1
        await asyncio.sleep(0)
    answered.exception()
    return events, iterations


@pytest.mark.parametrize("encoded", [False, True])
async def test_audit_large_answer_runs_in_slices(encoded: bool) -> None:
    answer = delete_records_answer()
    if encoded:
        answer = codec.encode(ApiKey.DELETE_RECORDS, 2, answer)
    request = Fields(topics=(Fields(name="t"),))

    [event], iterations = await events_of(ApiKey.DELETE_RECORDS, lambda: answer, request)

    assert event["status_detail"] == "OFFSET_OUT_OF_RANGE,KAFKA_STORAGE_ERROR"
    assert iterations > COUNT // SLICE


async def test_audit_many_users_runs_in_slices() -> None:
    """A client that may not change users can cause this."""

    def denied() -> Any:
        raise ClusterAuthorizationFailed("denied")

    request = Fields(
        deletions=tuple(Fields(name=f"user{index}") for index in range(COUNT)),
        upsertions=tuple(Fields(name=f"user{index}") for index in range(COUNT - 10, COUNT + 10)),
    )

    events, iterations = await events_of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, denied, request)

    assert [event["activity_name"] for event in events] == ["Delete"] * (COUNT - 10) + ["Password Change"] * 20
    assert {event["status_detail"] for event in events} == {"CLUSTER_AUTHORIZATION_FAILED"}
    assert iterations > COUNT // SLICE


async def test_audit_many_resources_names_the_first() -> None:
    names: list[int] = []

    class Topic:
        def __init__(self, number: int) -> None:
            self._number = number

        @property
        def name(self) -> str:
            names.append(self._number)
            return f"t{self._number}"

    request = Fields(topics=tuple(map(Topic, range(COUNT))))

    [event], _ = await events_of(ApiKey.DELETE_TOPICS, lambda: Fields(responses=()), request)

    assert [one["name"] for one in event["resources"]] == [f"t{number}" for number in range(RESOURCES_MAX)]
    assert event["unmapped"] == {"resources_left_out": COUNT - RESOURCES_MAX}
    assert len(names) == RESOURCES_MAX
