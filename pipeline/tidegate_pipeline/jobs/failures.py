"""From whatever a query fails with to the error of the pipeline that is at its bottom.

An error of a Python worker arrives as text: its traceback, inside the exception of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tidegate_pipeline import errors
from tidegate_pipeline.errors import PipelineError

_RAISED: Final = re.compile(r"\btidegate_pipeline\.errors\.(\w+): (.*)$", re.MULTILINE)
_LAST_OF_A_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ |+].*\n)+(\S.*)")


def cause_of(error: BaseException) -> PipelineError:
    """The PipelineError that `error` is or carries as text; another failure as one of its own, in one line."""
    chain = list(_causes(error))
    for one in chain:
        if isinstance(one, PipelineError):
            return one
    reported = "\n".join(str(one) for one in chain)
    for kind, message in reversed(_RAISED.findall(reported)):
        raised = getattr(errors, kind, None)
        if isinstance(raised, type) and issubclass(raised, PipelineError):
            return raised(message.strip())
    return PipelineError(_one_line(error, reported))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Python's chain, and Spark's: a captured exception keeps the JVM's cause apart."""
    observed: set[int] = set()
    while error is not None and id(error) not in observed:
        observed.add(id(error))
        yield error
        error = error.__cause__ or getattr(error, "_cause", None)


def _one_line(error: BaseException, reported: str) -> str:
    if in_worker := _LAST_OF_A_TRACEBACK.findall(reported):
        return str(in_worker[-1]).strip()
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
