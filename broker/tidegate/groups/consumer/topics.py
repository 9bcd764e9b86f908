"""What decisions on groups ask of the topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """A snapshot of the topics of one organisation."""

    version: int

    def find(self, name: str) -> tuple[str, int] | None:
        """Topic id in hex and partition count; None if there is no such topic."""

    def name_of(self, topic_id: str) -> str | None:
        """The name of the topic with this id in hex; None if there is no such topic."""

    def matching(self, regex: str, principal: str, host: str) -> Iterable[str]:
        """Names of the topics that a regular expression matches completely, and that a client may describe."""
