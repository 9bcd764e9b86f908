"""Parse the reply of INFO. No I/O."""

from __future__ import annotations

from typing import Any


def info_fields(reply: Any) -> dict[str, str]:
    """The fields of sections of INFO; of a repeated field the last value. Empty for an error."""
    if not isinstance(reply, bytes):
        return {}
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
