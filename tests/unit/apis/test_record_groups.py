"""Owners of partitions of format record: what is searched for an assignment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidegate.apis.record_groups import note_consumer_owner


async def test_topics_of_an_assignment_are_searched_once() -> None:
    searched: list[UUID] = []
    plain = SimpleNamespace(config=SimpleNamespace(is_record=False))

    def by_id(_: str, topic_id: UUID) -> Any:
        searched.append(topic_id)
        return plain if topic_id.int == 1 else None

    call: Any = SimpleNamespace(org="default", context=SimpleNamespace(catalog=SimpleNamespace(by_id=by_id)))
    assignment = frozenset((UUID(int=number).hex, index) for number in (1, 2) for index in range(1_000))

    await note_consumer_owner(call, call, "a", assignment)

    assert len(searched) == 2
