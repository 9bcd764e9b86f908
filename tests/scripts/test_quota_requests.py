"""DescribeClientQuotas: the quotas of many clients."""

from __future__ import annotations

import pytest

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis import registry, slices
from tidegate.protocol.api_keys import ApiKey
from tidegate.quotas.entities import Entity, Quota
from tidegate.store.store import Store

CLIENTS = 1_200


async def test_describe_client_quotas_selects_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quotas of 20,000 clients took 0.6 s of the event loop."""
    context = build_broker(store).context
    assert context.quotas is not None
    changes = [(Entity.of({"client-id": f"app-{n}"}), Quota.PRODUCE, 1e6) for n in range(CLIENTS)]
    await context.quotas.quotas.change("default", changes, "test")
    pause, pauses = slices.pause, []

    async def counted() -> None:
        pauses.append(1)
        await pause()

    monkeypatch.setattr(slices, "pause", counted)
    answer = await ask(context, request(48, 1, components=[], strict=False))

    assert len(answer.entries) == CLIENTS
    assert len(pauses) == CLIENTS // slices.SLICE
    assert registry.load_all()[ApiKey.DESCRIBE_CLIENT_QUOTAS].answers_large
