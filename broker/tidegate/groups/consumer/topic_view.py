"""The topics of one organisation as consumer groups see them: ids, partition counts, names that a pattern matches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Final
from uuid import UUID

from tidegate.regular_expressions import InvalidRegularExpression, compile_regex
from tidegate.store.bounded_cache import BoundedCache
from tidegate.topics.catalog import Catalog

PARTITIONS_OF_A_TOPIC: Final = 10
"""Partitions that take as long as a topic to be assigned."""
_NAME_BYTES: Final = 64
"""Of a name in the set of those that a pattern matches; the text is the catalogue's."""

MayDescribe = Callable[[str, str, str, str], bool]
"""Whether a client may describe a topic: organisation, principal, host, name."""


class TopicView:
    """The broker's cached topics of one organisation, at one version of the catalogue."""

    __slots__ = ("_describable", "_matched", "_org", "_topics", "version")

    def __init__(self, topics: CatalogTopics, org: str, version: int, matched: Mapping[str, frozenset[str]]) -> None:
        self._topics, self._org, self.version, self._matched = topics, org, version, matched
        self._describable: dict[tuple[str, str, str], frozenset[str]] = {}

    def find(self, name: str) -> tuple[str, int] | None:
        """Topic id in hex and partition count; None if there is no such topic."""
        topic = self._topics.catalog.get(self._org, name)
        return None if topic is None else (topic.topic_hex, topic.partition_count)

    def name_of(self, topic_id: str) -> str | None:
        """The name of the topic with this id in hex; None if there is no such topic."""
        topic = self._topics.catalog.by_id(self._org, UUID(hex=topic_id))
        return None if topic is None else topic.name

    def matching(self, regex: str, principal: str, host: str) -> frozenset[str]:
        """Names of the topics that a pattern matches completely, and that a client may describe.

        The pattern is one of those that the view was made for.
        """
        asked = regex, principal, host
        if asked not in self._describable:  # most members of a group ask for the same
            names = self._matched[regex]
            self._describable[asked] = self._topics.describable(self._org, names, principal, host)
        return self._describable[asked]

    def sizes(self, topics: Iterable[str], regex: str = "") -> Iterator[int]:
        """How much each topic of a subscription adds to a decision."""
        for name in chain(topics, self._matched[regex] if regex else ()):
            found = self.find(name)
            yield 1 + (0 if found is None else found[1] // PARTITIONS_OF_A_TOPIC)


class CatalogTopics:
    """The catalogue as the source of views; what patterns match is cached until the catalogue changes.

    The cache has `patterns_bytes_max`; a group whose patterns do not fit matches them at every decision.
    """

    def __init__(self, catalog: Catalog, patterns_bytes_max: int = 0) -> None:
        self.catalog = catalog
        self.may_describe: MayDescribe | None = None
        """None where everybody may describe every topic."""
        self._matched: BoundedCache[tuple[str, str], tuple[int, frozenset[str]]] = BoundedCache(patterns_bytes_max)
        self._thread = ThreadPoolExecutor(1, "patterns")

    def close(self) -> None:
        """Resolve nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> int:
        """The catalogue's version in the store that this broker has cached."""
        return self.catalog.stored_version

    def view(self, org: str) -> TopicView:
        """The cached topics of an organisation, without patterns."""
        return TopicView(self, org, self.catalog.stored_version, {})

    async def view_of(self, org: str, regexes: Iterable[str]) -> TopicView:
        """The same with what patterns match, in a thread of its own: one can take milliseconds for each name."""
        version, stored_version = self.catalog.version, self.catalog.stored_version
        matched: dict[str, frozenset[str]] = {}
        missing = []
        for regex in regexes:
            cached = self._matched.get((org, regex))
            if cached is not None and cached[0] == version:
                matched[regex] = cached[1]
            else:
                missing.append(regex)
        if missing:
            names = [topic.name for topic in self.catalog.topics(org)]
            found = await asyncio.get_running_loop().run_in_executor(self._thread, _match_each, missing, names)
            for regex, own in zip(missing, found, strict=True):
                matched[regex] = own
                self._matched.put((org, regex), (version, own), len(regex) + _NAME_BYTES * len(own))
        return TopicView(self, org, stored_version, matched)

    def describable(self, org: str, names: frozenset[str], principal: str, host: str) -> frozenset[str]:
        """Those of some topics that a client may describe."""
        may = self.may_describe
        return names if may is None else frozenset(name for name in names if may(org, principal, host, name))

    async def refresh(self) -> None:
        """Read the changes made before this call. Raises StoreUnavailable."""
        await self.catalog.refresh()


def _match_each(regexes: Sequence[str], names: Sequence[str]) -> list[frozenset[str]]:
    return [_matched(regex, names) for regex in regexes]


def _matched(regex: str, names: Sequence[str]) -> frozenset[str]:
    """The names that a pattern matches completely: none if it was accepted once, and is refused now."""
    try:
        pattern = compile_regex(regex)
    except InvalidRegularExpression:
        return frozenset()
    return frozenset(name for name in names if pattern.fullmatch(name))
