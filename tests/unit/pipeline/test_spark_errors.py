"""What Spark is sent of an exception."""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.util import handle_worker_exception

import tidegate_pipeline
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.failures import cause_of
from tidegate_pipeline.spark_errors import CALLED_BY_SPARK, reports_one_line


@reports_one_line
class Source:
    def schema(self) -> None:
        raise UsageError("mode is decoded or raw")

    def read(self, partition: int) -> Iterator[int]:
        yield partition
        raise UsageError("offsets are missing")

    def commit(self) -> None:
        raise ValueError("a fault of the program")

    def latestOffset(self, start: int, limit: int) -> int:
        return start + limit


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def sent(call: Callable[[], object]) -> str:
    """The text that a Python worker sends of what `call` raises."""
    out = io.BytesIO()
    try:
        call()
    except Exception as error:  # noqa: BLE001 - as a worker does
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()


def test_pipeline_error_is_sent_as_one_line() -> None:
    assert sent(Source().schema) == "tidegate_pipeline.errors.UsageError: mode is decoded or raw\n"


def test_pipeline_error_of_a_generator_is_sent_as_one_line() -> None:
    assert sent(lambda: list(Source().read(1))) == "tidegate_pipeline.errors.UsageError: offsets are missing\n"


SPARK_CLASSES = (
    DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamArrowWriter, DataSourceArrowWriter,
)  # fmt: skip


def classes_of_spark() -> Iterator[type]:
    """Every source, sink, reader and writer of the package."""
    for module in walk_packages(tidegate_pipeline.__path__, "tidegate_pipeline."):
        found = vars(import_module(module.name)).values()
        yield from (
            one
            for one in found
            if isinstance(one, type) and issubclass(one, SPARK_CLASSES) and one.__module__ == module.name
        )


def test_every_source_and_sink_reports_one_line() -> None:
    classes = list(classes_of_spark())
    assert len(classes) >= 17
    missing = {
        f"{one.__name__}.{name}"
        for one in classes
        for name in CALLED_BY_SPARK
        if name in vars(one) and not hasattr(vars(one)[name], "__wrapped__")
    }
    assert not missing


def test_other_exceptions_keep_their_traceback() -> None:
    assert sent(Source().commit).startswith("Traceback")
    assert not os.environ["SPARK_HIDE_TRACEBACK"]


def test_methods_keep_results_and_signature() -> None:
    assert Source().latestOffset(1, 2) == 3
    assert list(inspect.signature(Source.latestOffset).parameters) == ["self", "start", "limit"]


def test_cause_of_finds_the_error_in_the_line_of_spark() -> None:
    text = "[PYTHON_DATA_SOURCE_ERROR] Failed: tidegate_pipeline.errors.UsageError: no such topic\n SQLSTATE: 1"
    found = cause_of(RuntimeError(text))

    assert isinstance(found, UsageError)
    assert str(found) == "no such topic"
