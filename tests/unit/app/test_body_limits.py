"""Bodies of REST requests are limited in bytes and in values: decoding one must not stall the event loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tidegate.apis.slices import SLICE
from tidegate.http.access import ACTOR
from tidegate.http.api import endpoint
from tidegate.http.api.changes import Trim
from tidegate.http.api.endpoint import BODY_BYTES_MAX, CONTEXT, READ_CACHE, Asked, endpoints
from tidegate.http.api.offset_changes import OffsetReset
from tidegate.http.api.quotas import QuotaChanges
from tidegate.http.routes import _failures
from tidegate.http.single_flight import SingleFlightCache

LONG = "t" * 249
OFFSETS = [{"topic": "orders", "partition": number, "offset": 123_456_789} for number in range(50_000)]


@asynccontextmanager
async def serving(taken: list[Any]) -> AsyncIterator[Any]:
    """A server of the REST endpoints that have a body, whose handlers only note the body."""

    async def note(asked: Asked) -> None:
        taken.append(asked.body)

    @web.middleware
    async def operator(request: web.Request, handler: Any) -> Any:
        request[ACTOR] = SimpleNamespace(name="tester")
        return await handler(request)

    app = web.Application(middlewares=[_failures, operator], client_max_size=BODY_BYTES_MAX)
    app[CONTEXT], app[READ_CACHE] = SimpleNamespace(), SingleFlightCache()  # type: ignore[assignment]
    for one in endpoints:
        if one.body is not None:
            app.router.add_routes([replace(one, handler=note, gives=None).route()])
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/groups/g/offsets/reset", {"offsets": OFFSETS}),
        (
            "POST",
            "/groups/g/offsets/plan",
            {"to_latest": True, "topics": [f"orders:{','.join(map(str, range(10_000)))}"]},
        ),
        ("POST", "/topics/t/trim", {"partitions": [{"partition": 10**6 + n, "before": 10**18} for n in range(1_000)]}),
        (
            "PATCH",
            "/quotas",
            {
                "changes": [
                    {"entity": f"user={LONG},client-id={n}", "quota": "consumer_byte_rate", "value": 1.5}
                    for n in range(1_000)
                ]
            },
        ),
    ],
)
async def test_largest_legal_bodies_are_taken(method: str, path: str, body: Any) -> None:
    taken = list[Any]()
    async with serving(taken) as client:
        answer = await client.request(
            method,
            f"/api/v1{path}",
            data=BytesIO(json.dumps(body).encode()),
            headers={"Content-Type": "application/json"},
        )

        assert answer.status == 204, await answer.text()
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/topics/t/trim", '{"a":[' + "{}," * 20_000 + "{}]}"),
        ("/topics/t/trim", '{"a":"' + "a" * (600 << 10) + '"}'),
        ("/groups/g/offsets/reset", '{"a":[' + ",".join(["{}"] * 1_390_000) + "]}"),
        ("/groups/g/offsets/reset", '{"a":[' + ",".join(["[]"] * 300_000) + "]}"),
        ("/groups/g/offsets/reset", '{"a":[' + ",".join(["1"] * 300_000) + "]}"),
    ],
)
async def test_body_beyond_its_limit_is_413_and_not_decoded(
    path: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[str]()
    monkeypatch.setattr(endpoint, "json", SimpleNamespace(loads=decoded.append, JSONEncoder=json.JSONEncoder))
    async with serving([]) as client:
        answer = await client.post(
            f"/api/v1{path}", data=BytesIO(body.encode()), headers={"Content-Type": "application/json"}
        )

        assert answer.status == 413
        assert "at most" in (await answer.json())["detail"]
    assert decoded == []


def test_wrong_elements_are_reported_up_to_the_first() -> None:
    """Each error is an object: a list of 250,000 would take 400 ms."""
    models = (OffsetReset, "topics", 1), (OffsetReset, "offsets", {}), (Trim, "partitions", {})
    for model, name, wrong in (*models, (QuotaChanges, "changes", {})):
        with pytest.raises(ValueError) as refused:
            model.model_validate({name: [wrong] * 900})
        assert len(refused.value.errors()) <= 3  # type: ignore[attr-defined]


async def reset_with(offsets: list[Any]) -> tuple[int, str]:
    async with serving([]) as client:
        data = BytesIO(json.dumps({"offsets": offsets}).encode())
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/api/v1/groups/g/offsets/reset", data=data, headers=headers)
        return answer.status, await answer.text()


async def test_offsets_are_validated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    validated, validate = list[int](), endpoint._taken

    def taken(model: Any, values: Any, *more: Any) -> Any:
        validated.append(len(values.get("offsets", ())))
        return validate(model, values, *more)

    monkeypatch.setattr(endpoint, "_taken", taken)

    assert await reset_with(OFFSETS) == (204, "")

    assert max(validated) <= SLICE and sum(validated) == len(OFFSETS)


async def test_wrong_offset_among_many_is_named_by_its_place() -> None:
    status, text = await reset_with([*OFFSETS[:1_234], {"topic": "orders", "partition": -1, "offset": 0}])

    assert status == 400 and "body.offsets.1234.partition" in text


async def test_more_offsets_than_one_request_may_have_are_refused() -> None:
    status, text = await reset_with([*OFFSETS, OFFSETS[0]])

    assert status == 400 and "body.offsets: at most 50000 items" in text
