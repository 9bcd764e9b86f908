"""Why one record cannot be decoded."""

from __future__ import annotations


class Undecodable(Exception):
    """Bytes that are not what their schema says; `schema_id` where they name one."""

    def __init__(self, reason: str, schema_id: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.schema_id = schema_id
