"""A query that is asked to end: after its running micro-batch, whose progress is not lost."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate_pipeline.jobs import running


class Query:
    """One whose trigger became inactive; `ends` says whether it ends by itself, after it recorded its progress."""

    def __init__(self, ends: bool) -> None:
        self.status: dict[str, Any] = {"isTriggerActive": False}
        self.steps: list[str] = []
        self._ends = ends

    def awaitTermination(self, timeout: float) -> bool:
        self.steps.append("progress" if self._ends else "waited")
        return self._ends

    def stop(self) -> None:
        self.steps.append("stop")


@pytest.mark.parametrize(("ends", "steps"), [(True, ["progress"]), (False, ["waited", "stop"])])
def test_query_records_its_progress_before_it_is_stopped(ends: bool, steps: list[str]) -> None:
    query: Any = Query(ends)
    running.await_end(query)
    assert query.steps == steps
