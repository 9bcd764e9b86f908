"""The REST API /api/v1, on the same functions as the console; its OpenAPI document is /api/v1/openapi.json."""

from __future__ import annotations

from tidegate.http.api import changes, offset_changes, quotas, reads
from tidegate.http.api.endpoint import endpoints

__all__ = ["changes", "endpoints", "offset_changes", "quotas", "reads"]
