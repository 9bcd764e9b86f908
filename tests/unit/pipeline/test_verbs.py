"""The command group: options of jobs, jobs of a file, summaries, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from tidegate.command_line import command_line
from tidegate_pipeline.cli import JobMaker, application, job_command, reporting
from tidegate_pipeline.errors import DataLoss, UsageError
from tidegate_pipeline.jobs.command import context_of
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.several import runs_of
from tidegate_pipeline.jobs.summary import plan_lines, summary_lines
from tidegate_pipeline.settings import load


class Counting(Job):
    """Says what it was given."""

    name = "counting"

    def __init__(self, topics: list[str], times: int) -> None:
        self.topics, self.times = topics, times

    @property
    def query_name(self) -> str:
        return "-".join([self.name, *self.topics])

    def plan(self, context: JobContext) -> list[dict[str, object]]:
        if "lost" in self.topics:
            raise DataLoss("lost-0 is cut")
        return [{"topic": topic, "offsets": self.times} for topic in self.topics]

    def start(self, context: JobContext) -> Any:
        raise AssertionError

    def finish(self, context: JobContext) -> dict[str, object]:
        raise AssertionError


def counting(
    topics: Annotated[list[str], typer.Option(help="Which.")],
    times: Annotated[int, typer.Option(help="How often.")] = 1,
) -> Job:
    """Count."""
    return Counting(topics, times)


@pytest.fixture
def app() -> typer.Typer:
    """A group with one job."""
    group = typer.Typer()
    group.callback()(lambda: None)
    job_command(group)(counting)
    return group


def test_job_takes_its_own_options_and_the_shared_ones(app: typer.Typer, tmp_path: Path) -> None:
    options = ["counting", "--topics", "a", "--topics", "b", "--dry-run", "--checkpoint", str(tmp_path)]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "counting-a-b would read",
        "  topic  offsets",
        "  a            1",
        "  b            1",
    ]

    as_json = CliRunner().invoke(app, [*options, "--json", "--times", "3"])
    assert json.loads(as_json.stdout)["plan"] == [{"topic": "a", "offsets": 3}, {"topic": "b", "offsets": 3}]


@pytest.mark.parametrize(
    ("options", "code", "reported"),
    [
        (["--topics", "lost", "--checkpoint", "c"], 3, "tidegate: lost-0 is cut"),
        (["--topics", "a"], 2, "tidegate: counting-a: where is its checkpoint?"),
        (["--topics", "a", "--checkpoint", "c", "--every", "soon"], 2, "tidegate: --every soon: a time such as"),
        (["--topics", "a", "--checkpoint", "c", "--once", "--every", "1s"], 2, "tidegate: --once or --every, not both"),
        (["--topics", "a", "--config", "nowhere.toml"], 2, "tidegate: no such file: nowhere.toml"),
        (["--topics", "a", "--unknown"], 2, "No such option"),
    ],
)
def test_failures_are_one_line_and_a_status(app: typer.Typer, options: list[str], code: int, reported: str) -> None:
    ended = CliRunner().invoke(app, ["counting", "--dry-run", *options])

    assert ended.exit_code == code
    assert reported in ended.stderr


def file_of(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "pipeline.toml"
    file.write_text(f'[checkpoint]\npath = "{tmp_path}"\n{text}')
    return file


def jobs(tmp_path: Path, text: str) -> Any:
    makers: dict[str, JobMaker] = {"counting": counting}
    return runs_of(makers, load(file_of(tmp_path, text)), "1m")


def test_jobs_of_a_file(tmp_path: Path) -> None:
    first, second = jobs(
        tmp_path,
        '[jobs.counting]\ntopics = ["a"]\n'
        '[jobs.more]\nverb = "counting"\ntopics = ["b"]\ntimes = 7\nevery = "5s"\ncheckpoint = "s3a://b/c"\n',
    )

    assert (first.job.topics, first.job.times) == (["a"], 1)
    assert (first.context.trigger, first.context.checkpoint) == (
        {"processingTime": "1 minutes"},
        str(tmp_path / "counting-a"),
    )
    assert (second.job.times, second.context.trigger) == (7, {"processingTime": "5 seconds"})
    assert second.context.checkpoint == "s3a://b/c"


def test_jobs_of_a_file_once_wins_over_its_tables(tmp_path: Path) -> None:
    settings = load(file_of(tmp_path, '[jobs.counting]\ntopics = ["a"]\nevery = "5s"\n'))

    [run] = runs_of({"counting": counting}, settings, None, once=True)
    assert run.context.trigger == {"availableNow": True}
    with pytest.raises(UsageError, match="--once or --every, not both"):
        runs_of({"counting": counting}, settings, "1m", once=True)


@pytest.mark.parametrize(
    ("table", "reported"),
    [
        ("", "no [jobs.<name>] table"),
        ("[jobs.other]\n", 'jobs.other: no job "other"; there are counting'),
        ("[jobs.counting]\ntimes = 2\n", "jobs.counting: topics: Missing required"),
        ('[jobs.counting]\ntopics = ["a"]\ntime = 2\n', "jobs.counting: time: Unexpected keyword"),
        (
            '[jobs.counting]\ntopics = ["a"]\n[jobs.x]\nverb = "counting"\ntopics = ["a"]\n',
            "the same query: counting-a",
        ),
    ],
)
def test_files_that_cannot_be_right(tmp_path: Path, table: str, reported: str) -> None:
    with pytest.raises(UsageError) as raised:
        jobs(tmp_path, table)
    assert reported in str(raised.value)


def test_summary_is_one_screen() -> None:
    reported = {
        "job": "archive", "status": "done", "seconds": 12.34, "rows": 1_000, "rows_are": "batches",
        "rows_per_second": 81, "micro_batches": 2,
        "ranges": {f"t-{partition}": [0, 10] for partition in range(40)}, "remaining_offsets": 0,
        "checkpoint": "/c", "segments": 3, "ratio": 0.25, "skipped": [], "tables": [{"topic": "a", "files": 2}],
    }  # fmt: skip
    lines = list(summary_lines(reported))

    assert lines[:3] == [
        "archive: done after 12.3 s",
        "  read               1,000 batches in 2 micro-batches, 81 a second",
        "  offsets            t-0  0 to 10",
    ]
    assert "                     and of 28 partitions more" in lines
    assert lines[-6:] == ["  checkpoint         /c", "  segments           3", "  ratio              0.25", "  tables",
                          "  topic  files", "  a          2"]  # fmt: skip
    assert len(lines) < 24
    assert list(plan_lines("archive", [])) == ["archive: nothing to read"]


def test_pipeline_group_is_mounted_and_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert application().registered_commands
    monkeypatch.setattr("tidegate.command_line.find_spec", lambda name: None)

    ended = CliRunner().invoke(command_line, ["pipeline", "doctor", "--json"])
    assert ended.exit_code == 2
    assert ended.stderr == "tidegate: the pipeline is not installed here: pip install tidegate-pipeline\n"


def test_settings_are_shown_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://me:secret@r:1/0")
    monkeypatch.setenv("TIDEGATE_PIPELINE_SPARK", '{"executor": {"memory": "2g"}, "spark.ui.enabled": false}')
    shown = CliRunner().invoke(application(), ["settings"]).stdout

    assert "secret" not in shown
    assert 'redis.url = "redis://me:***@r:1/0"' in shown
    assert 'spark.executor.memory = "2g"\nspark.ui.enabled = "false"' in shown


@pytest.mark.parametrize(
    "verb", ["restore --topic t --from 0", "translate-offsets --group g --from-topic t --to-topic u", "gc"]
)
def test_every_verb_takes_the_password_from_where_it_is(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_PASSWORD_VARIABLE", "NOT_THERE")

    reported = CliRunner().invoke(application(), verb.split())

    assert (reported.exit_code, "environment variable NOT_THERE, which is not set" in reported.stderr) == (2, True)


def test_password_that_tasks_would_not_find_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text('[redis]\nurl = "redis://:secret@r:1/0"\n')
    job = Counting(["a"], 1)
    with pytest.raises(UsageError, match="no task reads that file"):
        context_of(job, load(file), str(tmp_path), {})

    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://:secret@r:1/0")
    assert context_of(job, load(file), str(tmp_path), {}).settings.redis.url == "redis://:secret@r:1/0"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (b"a = [", "settings.toml is not TOML: Invalid value"),
        (b"a = '\xff'", "settings.toml is not TOML: 'utf-8' codec can't decode"),
        (b"[lag]\nwindw = 3", "tidegate: settings of the pipeline: lag.windw: Extra inputs"),
    ],
)
def test_file_of_settings_that_is_none_is_one_line(tmp_path: Path, text: bytes, reported: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(text)

    ended = CliRunner().invoke(application(), ["settings", "--config", str(file)])
    assert ended.exit_code == 2
    assert reported in ended.stderr and ended.stderr.count("\n") == 1


def test_error_about_an_archive_shows_no_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reporting():
        raise UsageError("no table at s3://AKIA:se/cret@bucket/a\n")

    assert capsys.readouterr().err == "tidegate: no table at s3://***@bucket/a\\n\n"


def test_variable_that_is_no_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_SPARK", "memory=2g")

    ended = CliRunner().invoke(application(), ["settings"])
    assert (ended.exit_code, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("tidegate: settings of the pipeline: ")


def test_jobs_wait_for_redis_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_RETRY_S", "0.5")

    ended = CliRunner().invoke(application(), ["lag", "--checkpoint", str(tmp_path)])
    assert ended.exit_code == 1
    waiting, failed = ended.stderr.splitlines()
    assert waiting == "Redis is away, waiting for it up to 0.5 s"
    assert failed.startswith("tidegate: Redis is away for 0.5 s: Error 111 connecting to 127.0.0.1:1")


def test_redis_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("TIDEGATE_ARCHIVE_PATH", str(tmp_path))

    reported = CliRunner().invoke(application(), ["restore", "--topic", "orders", "--from", "0"])

    assert reported.exit_code == 1
    assert reported.stderr.startswith("tidegate: Redis: Error 111 connecting to 127.0.0.1:1")
    assert reported.stderr.count("\n") == 1
