"""What can go wrong in the pipeline. The first line of each is for people; Spark shows it near the end of its text.

`exit_status` is what `tidegate pipeline` ends with.
"""

from __future__ import annotations

from typing import ClassVar


class PipelineError(Exception):
    """A failure with a clear first line."""

    exit_status: ClassVar[int] = 1


class UsageError(PipelineError):
    """An option, setting or argument that cannot be right."""

    exit_status = 2


class DataLoss(PipelineError):
    """Offsets that were asked for are in no tier any more, or the log went back."""

    exit_status = 3


class CorruptLimit(PipelineError):
    """More corrupt batches than `corrupt_limit` allows."""

    exit_status = 4


class ArchiveConflict(PipelineError):
    """A segment does not begin where the archive ends, or a newer archiver took over."""

    exit_status = 5
