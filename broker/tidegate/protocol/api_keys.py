"""Kafka's API keys by name."""

from __future__ import annotations

import enum
from typing import Any

from kio.schema.index import api_key_map


def _api_keys() -> Any:
    return enum.IntEnum("ApiKey", {name.upper(): key for key, name in api_key_map.items()})


ApiKey = _api_keys()
"""Kafka's API keys, named as in its message files (`ApiKey.JOIN_GROUP`)."""
