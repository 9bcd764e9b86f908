"""Groups with very many commits: the event loop runs other work while the admin HTTP reads them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.apis.slices import SLICE
from tidegate.http import group_views, offset_actions, overview_views, stored_offsets
from tidegate.http.api import reads
from tidegate.http.console import overview_page
from tidegate.http.stored_offsets import StoredOffsets

COMMITS = {f"t:{number}".encode(): b'{"offset":%d,"leader_epoch":0,"topic_id":"","metadata":"m"}' % number
           for number in range(3_000)}  # fmt: skip
LISTED = {"severity": "", "lag": 1, "group": "g", "members": 0}


class PerIteration:
    """Counts calls in each iteration of the event loop."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work, self.counts, self._iteration = work, Counter[int](), 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not self.counts[self._iteration]:
            asyncio.get_running_loop().call_soon(self._next)
        self.counts[self._iteration] += 1
        return self._work(*given, **named)

    def _next(self) -> None:
        self._iteration += 1

    @property
    def most(self) -> int:
        return max(self.counts.values())


def context_with_commits() -> Any:
    async def read(command: str, key: str) -> dict[bytes, bytes]:
        return {**COMMITS, b":-1": COMMITS[b"t:0"]}

    async def find(org: str, name: str) -> Any:
        return SimpleNamespace(topic_hex="h") if name == "t" else None

    async def refresh() -> None:
        """The catalog is up to date."""

    store = SimpleNamespace(read=read, group_keys=lambda *_: SimpleNamespace(offsets="o"))
    return SimpleNamespace(store=store, catalog=SimpleNamespace(find=find, refresh=refresh))


async def test_committed_offsets_are_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = PerIteration(stored_offsets.parse_entry)
    monkeypatch.setattr(stored_offsets, "parse_entry", decode)

    found = await StoredOffsets(context_with_commits(), "default").committed("g")

    assert found == {("t", number): number for number in range(3_000)}
    assert decode.most <= SLICE


async def test_metadata_of_commits_is_decoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = PerIteration(offset_actions.parse_entry)
    monkeypatch.setattr(offset_actions, "parse_entry", decode)

    found = await offset_actions._metadata(context_with_commits(), "default", "g")

    assert found == {("t", number): "m" for number in range(3_000)}
    assert decode.most <= SLICE


async def test_lists_of_groups_are_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sums the lag of all its partitions."""
    threads = list[int]()

    def listed(_: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return dict(LISTED)

    async def views(*_: Any) -> Any:
        snapshot = SimpleNamespace(group_id="g", now_ms=1, state_since_ms=0, members=())
        return [SimpleNamespace(snapshot=snapshot, findings=())] * 3, 0

    async def none(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(group_views, "listed", listed)
    for name in ("view_first", "view_page"):
        monkeypatch.setattr(group_views, name, views)
    monkeypatch.setattr(overview_views, "brokers", none)
    monkeypatch.setattr(overview_views, "redis", none)
    monkeypatch.setattr(overview_views, "troubles", lambda *_: [])
    keys = SimpleNamespace(stored_group_keys=lambda *_: SimpleNamespace(ref="r"))
    lease, catalog = SimpleNamespace(cluster_id="c", node_id=1), SimpleNamespace(topics=lambda _: ())
    context: Any = SimpleNamespace(store=keys, broker_lease=lease, catalog=catalog)
    query = SimpleNamespace(org="default", after="", limit=3)
    console: Any = SimpleNamespace(context=context, trend=SimpleNamespace(read=none, of=lambda _: ()))

    assert (await overview_views.overview(context, "default"))["totals"]["lag"] == 3
    assert len((await reads.list_groups(SimpleNamespace(context=context, query=query)))["groups"]) == 3  # type: ignore[arg-type]
    assert len((await overview_page.group_rows(console, "default"))[0]) == 3

    assert len(threads) == 9 and threading.get_ident() not in threads
