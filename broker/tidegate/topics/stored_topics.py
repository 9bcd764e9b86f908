"""What `{cluster}:topics` and the hashes of configs hold; one topic that cannot be read hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.slices import slices
from tidegate.store.store import Store
from tidegate.topics.cached_topics import TOPICS_AT_ONCE
from tidegate.topics.model import Record, Topic, TopicState


def pairs(reply: Any, text: bool = False) -> list[tuple[Any, Any]]:
    """The items of a hash reply of RESP2 (flat) or RESP3 (mapping); names as text, values too with `text`."""
    items = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return [(name.decode(), value.decode() if text else value) for name, value in items]


@dataclass(slots=True)
class StoredTopics:
    """The topics as they were read last, by field: `<org>/<topic>`."""

    records: dict[str, Record] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    """What `records` were parsed from."""
    faulty_configs: set[str] = field(default_factory=set)
    """Topics whose configs could not be read; they are read again."""
    changed: list[str] = field(default_factory=list)
    """The fields that differ from those read before."""
    overrides: dict[str, dict[str, str]] = field(default_factory=dict)
    """The configs of the changed ones."""

    def leave_as_it_was(self, name: str, before: StoredTopics) -> None:
        """A topic or its configs cannot be read: it stays as it was read before, or unknown."""
        self.changed.remove(name)
        found, known = self.records.pop(name, None), before.records.get(name)
        if known is not None and (found is None or found.topic_id == known.topic_id):
            self.records[name], self.texts[name] = known, before.texts[name]
        else:
            del self.texts[name]


async def read_topics(
    store: Store, listed: Iterable[tuple[str, bytes]], before: StoredTopics, get: Callable[[str, str], Topic | None]
) -> StoredTopics:
    """What is stored, from the records as listed; `get` has the topics with their configs as read before.

    Raises StoreUnavailable, but not for one topic with a record or configs that cannot be read.
    """
    found = StoredTopics(texts=dict(listed))
    found.changed = [
        name for name, text in found.texts.items() if before.texts.get(name) != text or name in before.faulty_configs
    ]
    found.records = {name: before.records[name] for name in found.texts.keys() - found.changed}
    parsed: dict[str, Record] = {}
    async for some in slices(found.changed, TOPICS_AT_ONCE):
        parsed |= _parse(store, {name: found.texts[name] for name in some})
    found.records |= parsed
    for name in set(found.changed) - parsed.keys():
        found.leave_as_it_was(name, before)
    ready = [name for name, record in parsed.items() if record.config and record.state is TopicState.READY]
    found.overrides, found.faulty_configs = await _read_overrides(store, ready)
    for name in found.faulty_configs:
        topic = get(*name.split("/", 1))
        is_same = topic is not None and topic.topic_id == found.records[name].topic_id
        if topic is None or not is_same or before.texts.get(name) == found.texts[name]:
            found.leave_as_it_was(name, before)
        else:
            found.overrides[name] = dict(topic.overrides)
    return found


def _parse(store: Store, texts: Mapping[str, bytes]) -> dict[str, Record]:
    """The records by field, without what no broker wrote."""

    def parse(name: bytes, values: Sequence[bytes]) -> tuple[str, Record]:
        org, topic = name.decode().split("/", 1)
        return f"{org}/{topic}", Record.parse(values[0])

    entries = ((name.encode(), [text]) for name, text in texts.items())
    return dict(store.foreign_entries.leave_out(store.cluster_keys.topics, entries, parse))


async def _read_overrides(store: Store, names: Iterable[str]) -> tuple[dict[str, dict[str, str]], set[str]]:
    keys = store.cluster_keys
    calls = {name: store.command("HGETALL", keys.topic(*name.split("/", 1))) for name in names}
    replies, faulty = await gather_readable(calls)
    log_faulty("topic-configs", faulty)
    return {name: dict(pairs(reply, text=True)) for name, reply in replies.items()}, {*faulty}
