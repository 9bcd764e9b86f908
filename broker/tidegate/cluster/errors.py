"""Error codes that only requests of administrators get."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class LogDirNotFound(KafkaError):
    """No such log directory."""

    code = ErrorCode.log_dir_not_found


class ElectionNotNeeded(KafkaError):
    """The partition has a leader that every client may ask."""

    code = ErrorCode.election_not_needed


class NoReassignmentInProgress(KafkaError):
    """There is no reassignment to cancel."""

    code = ErrorCode.no_reassignment_in_progress


class InvalidUpdateVersion(KafkaError):
    """A feature has no such level, or cannot be changed at run time."""

    code = ErrorCode.invalid_update_version
