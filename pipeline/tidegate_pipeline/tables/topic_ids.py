"""The option `topicId` of the table sinks: a topic made again is another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from tidegate_pipeline.errors import UsageError


def topic_ids(ids: Mapping[str, str]) -> str:
    """The option's text: JSON, name -> id in hex."""
    return json.dumps(dict(ids), sort_keys=True)


def id_of_topic(text: str, topic: str) -> str:
    """Of the option's text: the id of the only topic, or JSON, name -> id. Raises UsageError."""
    if not text.startswith("{"):
        return text
    found = _parsed(text).get(topic)
    if found is None:
        raise UsageError(f"rows of topic {topic}, but topicId has no id of it")
    return str(found)


@lru_cache(maxsize=16)
def _parsed(text: str) -> dict[str, str]:
    try:
        ids: dict[str, str] = json.loads(text)
    except ValueError as error:
        raise UsageError(f"topicId is an id in hex, or JSON, topic -> id: {error}") from None
    return ids
