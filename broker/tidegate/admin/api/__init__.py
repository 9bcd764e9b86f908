"""REST over the same functions as the console: /api/v1, described by /api/v1/openapi.json."""

from __future__ import annotations

from tidegate.admin.api import changes, offset_changes, reads
from tidegate.admin.api.endpoint import endpoints

__all__ = ["changes", "endpoints", "offset_changes", "reads"]
