"""The topics of one organisation as consumer groups see them: ids, partition counts, names that a pattern matches."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

from tidegate.regular_expressions import InvalidRegularExpression, compile_regex
from tidegate.topics.catalog import Catalog

_PATTERNS_MAX: Final = 1_000
"""Resolved patterns that are cached."""
_RESOLVE_TRIES: Final = 3
"""Before a decision; each further one because the catalogue changed meanwhile."""

MayDescribe = Callable[[str, str, str, str], bool]
"""Whether a client may describe a topic: organisation, principal, host, name."""


class TopicView:
    """The broker's cached topics of one organisation, at one version of the catalogue."""

    __slots__ = ("_matching", "_org", "_topics", "version")

    def __init__(self, topics: CatalogTopics, org: str, version: int) -> None:
        self._topics, self._org, self.version = topics, org, version
        self._matching: dict[tuple[str, str, str], frozenset[str]] = {}

    def find(self, name: str) -> tuple[str, int] | None:
        """Topic id in hex and partition count; None if there is no such topic."""
        topic = self._topics.catalog.get(self._org, name)
        return None if topic is None else (topic.topic_hex, topic.partition_count)

    def name_of(self, topic_id: str) -> str | None:
        """The name of the topic with this id in hex; None if there is no such topic."""
        topic = self._topics.catalog.by_id(self._org, UUID(hex=topic_id))
        return None if topic is None else topic.name

    def matching(self, regex: str, principal: str, host: str) -> frozenset[str]:
        """Names of the topics that a pattern matches completely, and that a client may describe."""
        asked = regex, principal, host
        if asked not in self._matching:  # most members of a group ask for the same
            names = self._topics.matching(self._org, regex)
            self._matching[asked] = self._topics.describable(self._org, names, principal, host)
        return self._matching[asked]


class CatalogTopics:
    """The catalogue as the source of views; resolved patterns are cached until the catalogue changes."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.may_describe: MayDescribe | None = None
        """None where everybody may describe every topic."""
        self._resolved: OrderedDict[tuple[str, str], tuple[int, frozenset[str]]] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "patterns")

    def close(self) -> None:
        """Resolve nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> int:
        """The catalogue's version in the store that this broker has cached."""
        return self.catalog.stored_version

    def view(self, org: str) -> TopicView:
        """The cached topics of an organisation."""
        return TopicView(self, org, self.catalog.stored_version)

    def describable(self, org: str, names: frozenset[str], principal: str, host: str) -> frozenset[str]:
        """Those of some topics that a client may describe."""
        may = self.may_describe
        return names if may is None else frozenset(name for name in names if may(org, principal, host, name))

    async def refresh(self) -> None:
        """Read the changes made before this call. Raises StoreUnavailable."""
        await self.catalog.refresh()

    async def resolve(self, org: str, regexes: Iterable[str]) -> None:
        """Match what is not cached yet, in a thread of its own: a pattern can take milliseconds for each name."""
        wanted = set(regexes)
        for _ in range(_RESOLVE_TRIES):
            missing = [regex for regex in wanted if self._cached(org, regex) is None]
            if not missing:
                return
            version, names = self.catalog.version, self._names(org)
            found = await asyncio.get_running_loop().run_in_executor(self._thread, _match_each, missing, names)
            for regex, matched in zip(missing, found, strict=True):
                self._remember(org, regex, version, matched)

    def matching(self, org: str, regex: str) -> frozenset[str]:
        """Names of the topics that a pattern matches completely."""
        names = self._cached(org, regex)
        if names is None:
            names = _matched(regex, self._names(org))
            self._remember(org, regex, self.catalog.version, names)
        return names

    def _names(self, org: str) -> list[str]:
        return [topic.name for topic in self.catalog.topics(org)]

    def _cached(self, org: str, regex: str) -> frozenset[str] | None:
        resolved = self._resolved.get((org, regex))
        return resolved[1] if resolved is not None and resolved[0] == self.catalog.version else None

    def _remember(self, org: str, regex: str, version: int, names: frozenset[str]) -> None:
        self._resolved[org, regex] = version, names
        if len(self._resolved) > _PATTERNS_MAX:
            self._resolved.popitem(last=False)


def _match_each(regexes: Sequence[str], names: Sequence[str]) -> list[frozenset[str]]:
    return [_matched(regex, names) for regex in regexes]


def _matched(regex: str, names: Sequence[str]) -> frozenset[str]:
    """The names that a pattern matches completely: none if it was accepted once, and is refused now."""
    try:
        pattern = compile_regex(regex)
    except InvalidRegularExpression:
        return frozenset()
    return frozenset(name for name in names if pattern.fullmatch(name))
