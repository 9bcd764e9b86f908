"""What a user reads when a source or sink refuses: the error's own line, without the frames of the Python worker.

PySpark sends the text of an exception to the JVM with its traceback, unless the worker's environment has
SPARK_HIDE_TRACEBACK (`pyspark.util.handle_worker_exception`). A worker process ends after it sent one, so the variable
concerns that error alone. Other exceptions keep their traceback: they are faults of the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, Final, TypeVar

from tidegate_pipeline.errors import PipelineError

CALLED_BY_SPARK: Final = (
    "__init__", "schema", "reader", "streamReader", "writer", "streamWriter", "pushFilters", "partitions", "read",
    "initialOffset", "latestOffset", "prepareForTriggerAvailableNow", "reportLatestOffset", "write", "commit", "abort",
)  # fmt: skip
"""Methods of `pyspark.sql.datasource` whose exceptions Spark shows."""

Class = TypeVar("Class", bound=type)


def reports_one_line(cls: Class) -> Class:
    """Class decorator: a PipelineError that leaves a method called by Spark is shown as its one line."""
    for name in CALLED_BY_SPARK:
        method = vars(cls).get(name)
        if method is not None:
            setattr(cls, name, _reporting(method))
    return cls


def _reporting(method: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _without_traceback():
                yield from method(*args, **kwargs)

        return generate

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_traceback():
            return method(*args, **kwargs)

    return call


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except PipelineError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
