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


class CorruptLimit(PipelineError):
    """More corrupt batches than `corrupt_limit` allows."""

    exit_status = 4


class ArchiveConflict(PipelineError):
    """A segment does not start at the end of the archive, or a newer archiver replaced this one."""

    exit_status = 5
