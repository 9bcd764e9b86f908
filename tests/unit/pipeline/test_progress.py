"""Figures out of Spark's progress reports, and the errors that workers fail with."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tidegate_pipeline.errors import CorruptLimit, DataLoss, PipelineError, UsageError
from tidegate_pipeline.jobs.command import trigger
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.jobs.progress import Display, Figures, positions

WORKER_TEXT = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted: Task 0
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in main
    process()
redis.exceptions.ConnectionError: Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "reading.py", line 9, in read
    raise DataLoss(text)
tidegate_pipeline.errors.DataLoss: orders-0 offset 7 is cut
and what to do

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.lang.Exception: other
"""


def report(batch_id: int, rows: int | None, start: object, end: object, latest: object = None) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest, "metrics": {"batches": "2", "share": "x"}}
    return {"batchId": batch_id, "numInputRows": rows, "batchDuration": 500, "sources": [source]}


def test_positions_are_read_from_offsets_of_topics_only() -> None:
    assert positions('{"a":{"1":7,"0":3},"_ids":{"a":5}}') == {("a", 0): 3, ("a", 1): 7}
    assert positions({"tidegate:{co:1}:events": "12-0"}) == {}
    assert positions(None) == positions("7") == positions("no json") == {}


def test_each_micro_batch_counts_once_and_waiting_counts_nothing() -> None:
    figures = Figures()
    first = report(0, 10, None, json.dumps({"a": {"0": 10}}), json.dumps({"a": {"0": 35}}))
    second = report(1, None, '{"a":{"0":10}}', '{"a":{"0":30}}', '{"a":{"0":35}}')
    idle = report(2, 0, '{"a":{"0":30}}', '{"a":{"0":30}}', '{"a":{"0":35}}')
    figures.take([first])
    figures.take([first, second, idle, idle])
    figures.take([report(2, 5, '{"a":{"0":30}}', '{"a":{"0":35}}', '{"a":{"0":35}}')])

    assert (figures.rows, figures.micro_batches, figures.micro_batch_ms) == (15, 3, 1500)
    assert (figures.ranges(), figures.offsets, figures.remaining) == ({"a-0": [0, 35]}, 35, 0)
    assert figures.metrics == {"batches": 6}


def test_error_of_a_worker_is_found_in_the_text_of_the_query() -> None:
    found = cause_of(RuntimeError(WORKER_TEXT))

    assert isinstance(found, DataLoss)
    assert str(found) == "orders-0 offset 7 is cut"
    assert found.exit_status == 3


def test_other_failures_become_one_line() -> None:
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = CorruptLimit("101 corrupt batches")
    assert cause_of(wrapped) is wrapped.__cause__

    bug = cause_of(RuntimeError(WORKER_TEXT.replace("tidegate_pipeline.errors.DataLoss", "KeyError")))
    assert type(bug) is PipelineError
    assert (str(bug), bug.exit_status) == ("KeyError: orders-0 offset 7 is cut", 1)
    assert str(cause_of(ValueError("[PATH_NOT_FOUND] no such path.\nJVM stacktrace:"))) == (
        "ValueError: [PATH_NOT_FOUND] no such path."
    )
    assert str(cause_of(ValueError())) == "ValueError"


def test_time_between_micro_batches() -> None:
    assert trigger(False, None) == trigger(True, None) == {"availableNow": True}
    assert trigger(False, "30s") == trigger(False, "30") == {"processingTime": "30 seconds"}
    assert trigger(False, "500ms") == {"processingTime": "500 milliseconds"}
    for once, every in ((True, "30s"), (False, "soon"), (False, "1d")):
        with pytest.raises(UsageError):
            trigger(once, every)


def test_progress_includes_counts_of_a_topic_source() -> None:
    figures = Figures()
    for batch, lost in enumerate((0, 25, 40)):
        latest = {
            "orders": {"0": 9},
            "_metrics": {"pipeline_lost_offsets_total": lost, "pipeline_corrupt_batches_total": 0},
        }
        source = {"startOffset": None, "endOffset": {"orders": {"0": batch}}, "latestOffset": json.dumps(latest)}
        figures.take([{"batchId": batch, "numInputRows": 1, "sources": [source]}])

    assert figures.metrics == {"pipeline_lost_offsets_total": 40, "pipeline_corrupt_batches_total": 0}
    assert figures.latest == {("orders", 0): 9}


def test_progress_of_a_join_has_the_figures_of_all_its_topics() -> None:
    """Each source reports its own; a query that joins two topics is as far behind as the one that is further."""

    def source(topic: str, partitions: int, least: int, average: float, most: int, lost: int) -> dict[str, Any]:
        figures = {
            "minOffsetsBehindLatest": least, "avgOffsetsBehindLatest": average, "maxOffsetsBehindLatest": most,
            "pipeline_lost_offsets_total": lost,
        }  # fmt: skip
        ends = {topic: {str(partition): 9 for partition in range(partitions)}}
        return {"startOffset": None, "endOffset": ends, "latestOffset": json.dumps({**ends, "_metrics": figures})}

    figures = Figures()
    sources = [source("shown", 3, 2, 10.0, 20, 7), source("clicked", 1, 4, 4.0, 4, 0)]
    figures.take([{"batchId": 0, "numInputRows": 1, "sources": sources}])
    figures.take([{"batchId": 1, "numInputRows": 1, "sources": [sources[0], {**sources[1], "latestOffset": None}]}])

    assert figures.metrics == {
        "minOffsetsBehindLatest": 2, "avgOffsetsBehindLatest": 8.5, "maxOffsetsBehindLatest": 20,
        "pipeline_lost_offsets_total": 7,
    }  # fmt: skip


def test_progress_without_a_terminal_is_a_line_with_the_unit_of_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate_pipeline.jobs.progress._LINE_EVERY_S", 0)
    figures = Figures(rows=1_200, micro_batches=3, reached={("a", 0): 5}, latest={("a", 0): 12})
    Display().show("archive", figures, "batches")

    assert capsys.readouterr().err == "archive: 1,200 batches, micro-batches: 3, 7 offsets to go\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_at_a_terminal_is_a_bar_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    with Display() as display:
        display.show("archive", Figures(rows=1_200, micro_batches=3), "batches")
        display.show("archive", Figures(rows=1_500, micro_batches=4), "batches")

    assert "1,500 batches, micro-batches: 4" in screen.getvalue()
