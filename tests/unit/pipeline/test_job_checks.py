"""What a job looks at before Spark starts: topics that are named, folders that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate_pipeline.cli import application
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.jobs.writable import check_writable


class Catalogue:
    """A Redis that knows the topics `orders` and `copy`, and nothing else."""

    def ping(self) -> bool:
        return True

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        topic = json.dumps({"state": "ready", "id": "0" * 32, "partitions": 1}).encode()
        return {b"default/orders": topic, b"default/copy": topic}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark says that it was started, and is not; a checkpoint and an archive that can be written."""

    def started(*_: Any, **__: Any) -> None:
        raise PipelineError("Spark was started")

    monkeypatch.setattr("tidegate_pipeline.jobs.command.connect", lambda *_: Catalogue())
    monkeypatch.setattr("tidegate_pipeline.jobs.command.spark_session", started)
    monkeypatch.setenv("TIDEGATE_PIPELINE_CHECKPOINT_PATH", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("TIDEGATE_PIPELINE_ARCHIVE_PATH", str(tmp_path / "archive"))


def reported(command: str) -> tuple[int, str]:
    """The exit status and the last line on stderr."""
    ended = CliRunner().invoke(application(), command.split())
    return ended.exit_code, ended.stderr.splitlines()[-1]


JOBS = ["archive --topics orders", "decode --topic orders", "replay --from-topic orders --to-topic copy", "lag"]


@pytest.mark.parametrize("command", JOBS)
def test_valid_job_reaches_spark_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    assert reported(command) == (1, "tidegate: Spark was started")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", JOBS)
@pytest.mark.parametrize("what", ["archive.path", "checkpoint.path"])
def test_folder_that_cannot_be_written(
    command: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(f"TIDEGATE_PIPELINE_{what.replace('.', '_').upper()}", str(tmp_path / "file/below"))
    code, line = reported(command)

    assert code == 2 and line.endswith("cannot be written: Not a directory")
    reported_text = "archive.path" if what == "archive.path" else "the checkpoint"
    assert line.startswith(f"tidegate: {reported_text} {tmp_path}/file/below")


@pytest.mark.parametrize(
    "command",
    [
        "archive --topics orders,gone-*",
        "decode --topic gone-*",
        "replay --from-topic gone-* --to-topic copy",
        "replay --from-topic orders --to-topic gone-*",
    ],
)
def test_topic_that_is_not_there(command: str) -> None:
    code, line = reported(command)

    assert code == 2 and line.startswith("tidegate: no ") and line.endswith("gone-*")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("decode --topic orders,copy", "several topics need --table"),
        ("decode --topic orders,copy --table t --values registry", "needs --subject: its schema is that of all"),
        ("decode --topic , --table t", "which topic? --topic"),
        ("decode --topic orders --upsert", "--upsert is for Delta and Iceberg"),
        ("decode --topic orders --partition-by hour", "cannot partition by hour: the rows have no column hour"),
        ("decode --topic orders --partition-by bucket(4,key)", "bucket(…) is for Iceberg"),
        ("decode --topic orders --partition-by day(timestamp),day(timestamp)", "two partition columns day"),
        (
            "decode --topic orders --to delta --upsert --partition-by topic",
            "--partition-by with --upsert is for Iceberg",
        ),
    ],
)
def test_options_that_do_not_fit_together(command: str, message: str) -> None:
    code, line = reported(command)

    assert code == 2 and message in line


def test_other_file_systems_report_it_when_they_are_written(tmp_path: Path) -> None:
    check_writable("archive.path", "s3a://bucket/archive")
    check_writable("archive.path", f"file://{tmp_path}/archive")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"archive.path file://{tmp_path}/file cannot be written: Not a directory"):
        check_writable("archive.path", f"file://{tmp_path}/file")
