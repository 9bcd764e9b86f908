"""The topics that a request of several parts names, found before its first part is executed.

Parts can wait for minutes. A client that has given the request up may have deleted such a topic and created it again
through another broker: the new topic has another id, and the request does not name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from tidegate.apis.call import Call
from tidegate.apis.slices import each, in_slices
from tidegate.errors import KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.topics.catalog import Topic

NamedTopic = Topic | KafkaError
"""A topic, or the error of the parts that name it."""
_AT_ONCE: Final = 16


async def topics_of(call: Call, names: Iterable[str]) -> Mapping[str, NamedTopic]:
    """The topics of these names, by a refresh after the call; where Redis is away or there is none, the error."""
    catalog, found = call.context.catalog, dict[str, NamedTopic]()
    try:
        await catalog.refresh()
    except StoreUnavailable as error:
        return {name: error async for name in in_slices(names)}
    missing: dict[str, None] = {}
    async for name in in_slices(names):
        topic = catalog.get(call.org, name)
        if topic is None:
            missing[name] = None
        else:
            found[name] = topic
    others = await each(missing, partial(_find, call), _AT_ONCE)
    return found | dict(zip(missing, others, strict=True))


async def _find(call: Call, name: str) -> NamedTopic:
    """A topic that is not cached: its creation may be incomplete."""
    try:
        return await call.context.catalog.find(call.org, name) or UnknownTopicOrPartition()
    except KafkaError as error:
        return error


def as_now(call: Call, topic: NamedTopic) -> Topic:
    """The same topic as it is now: it may have other configs. Raises the error, UnknownTopicOrPartition."""
    if isinstance(topic, KafkaError):
        raise topic.with_traceback(None)  # parts that share it would lengthen its traceback
    found = call.context.catalog.by_id(call.org, topic.topic_id)
    if found is None:
        raise UnknownTopicOrPartition
    return found
