"""Check that the paths of a job are writable, before Spark starts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from tidegate.records.segment_file import open_archive
from tidegate_pipeline.errors import UsageError


def check_writable(what: str, path: str) -> None:
    """That a local folder, or the nearest above it that is there, takes files. Leaves nothing; raises UsageError.

    `what` names the path in the failure. Other file systems say it when they are written: a trial would leave versions
    of an object, and Spark has names for them that Arrow has not (`s3a`).
    """
    if "://" in path and not path.startswith("file://"):
        return
    try:
        folder = Path(open_archive(path)[1])
        with TemporaryFile(dir=next(one for one in (folder, *folder.parents) if one.exists())):
            pass
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{what} {path} cannot be written: {why}") from None
