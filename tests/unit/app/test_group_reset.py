"""The guard of `tidegate group reset --fence`: a member while the fenced are not back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.cli.client import group_guard
from tidegate.cli.client.group_guard import Guard

GUARD = SimpleNamespace(member_id="guard-1", client_id="tidegate-group@here:1", group_instance_id=None)
BACK = SimpleNamespace(member_id="web-2", client_id="web", group_instance_id=None)


class Operations:
    """Operations on a group that shows one list of members after the other, the last forever."""

    def __init__(self, *observed: list[Any]) -> None:
        self.observed = list(observed)
        self.removed: list[str] = []

    async def describe(self, _: Any, group_id: str) -> Any:
        return SimpleNamespace(members=self.observed.pop(0) if len(self.observed) > 1 else self.observed[0])

    async def leave(self, _: Any, group_id: str, members: list[tuple[str, str | None]], reason: str) -> None:
        self.removed += [member_id for member_id, _ in members]


@pytest.mark.parametrize(
    "observed",
    [
        [[GUARD], [GUARD, BACK]],
        [[], [BACK], [BACK, GUARD]],
        [[GUARD]],
    ],
    ids=["it comes first", "the fenced are quicker", "nobody comes"],
)
async def test_guard_always_leaves(monkeypatch: pytest.MonkeyPatch, observed: list[list[Any]]) -> None:
    monkeypatch.setattr(group_guard, "_CHECK_INTERVAL_S", 0.0)
    operations = Operations(*observed)
    monkeypatch.setattr(group_guard, "group_operations", operations)
    kafka = SimpleNamespace(client_id=GUARD.client_id)

    async with Guard(kafka, SimpleNamespace(group_id="g")) as guard:  # type: ignore[arg-type]
        await guard.wait()
        assert not operations.removed

    assert operations.removed == [GUARD.member_id]
