"""Errors of the pipeline. The first line of a message is for people; Spark prints it near the end of its text.

`exit_status` is what `tidegate pipeline` ends with.
"""

from __future__ import annotations

from typing import ClassVar


class PipelineError(Exception):
    """A failure with a clear first line."""

    exit_status: ClassVar[int] = 1


class UsageError(PipelineError):
    """An invalid option, setting or argument."""

    exit_status = 2


class DataLoss(PipelineError):
    """Requested offsets are no longer in any tier, or the log was truncated."""

    exit_status = 3


class LogGone(DataLoss):
    """A log was deleted, or never made. `end` is the end offset that it had; -1: not known."""

    def __init__(self, message: str, end: int = -1) -> None:
        super().__init__(message)
        self.end = end


class StrayEntry(PipelineError):
    """A stream entry that no broker appended, or that is truncated: its offsets are unknown."""


class CorruptLimit(PipelineError):
    """More corrupt batches than `corrupt_limit` allows."""

    exit_status = 4


class UndecodableValue(PipelineError):
    """A key or value is not what its schema declares, or more of them than `values.limit` allows."""

    exit_status = 4


class ArchiveConflict(PipelineError):
    """A segment does not start at the end of the archive, or a newer archiver replaced this one."""

    exit_status = 5
