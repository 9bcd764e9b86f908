"""Jobs that write tables and copies read committed records, unless the settings say otherwise; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tidegate_pipeline.jobs.decode import DecodeJob
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.replay import ReplayJob
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.topics import Topic

TOPIC = Topic("default", "orders", "ab", 1)


class Session:
    """Notes the options that a query is given."""

    def __init__(self) -> None:
        self.options_given: dict[str, Any] = {}
        self.readStream = self.writeStream = self

    def option(self, name: str, value: object) -> Session:
        self.options_given[name] = value
        return self

    def options(self, **given: object) -> Session:
        self.options_given |= given
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


def decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, upsert: bool = False) -> Job:
    monkeypatch.setattr(DecodeJob, "_found", lambda job, context: [TOPIC])
    monkeypatch.setattr(DecodeJob, "_starting", lambda job, topics, path: "{}")
    return DecodeJob("orders", "delta", str(tmp_path / "table"), upsert=upsert)


def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(ReplayJob, "_topics", lambda job, context: (TOPIC, TOPIC))
    monkeypatch.setattr(ReplayJob, "_offset_ranges", lambda job, context, source: {0: (0, 5, 5)})
    monkeypatch.setattr(ReplayJob, "_written", lambda job, *_: None)
    return ReplayJob("orders", "copy")


def isolation(job: Job, tmp_path: Path, **source: str) -> object:
    """What the job's query reads."""
    session: Any = Session()
    settings = {"redis": {"url": "redis://127.0.0.1:1/0"}, "archive": {"path": str(tmp_path)}, "source": source}
    given = PipelineSettings.model_validate(settings)
    job.start(JobContext(session, given, MagicMock(), tmp_path / "checkpoint", {"availableNow": True}))
    return session.options_given["isolation"]


def test_tables_and_copies_are_of_committed_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in (decode(tmp_path, monkeypatch), replay(tmp_path, monkeypatch)):
        assert isolation(job, tmp_path) == "read_committed"
        assert isolation(job, tmp_path, isolation="read_uncommitted") == "read_uncommitted"
    newest = decode(tmp_path, monkeypatch, upsert=True)
    assert isolation(newest, tmp_path, isolation="read_uncommitted") == "read_committed"
