"""What a history has of an acknowledgement, where the same commit has refusals of other records."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.history import Acknowledgement, History, Outcome
from tests.kit.share_members import ShareMember
from tests.kit.writers import Session
from tidegate.share import Rejected


@pytest.mark.parametrize(
    ("refused", "outcome"),
    [((1, 31), Outcome.OK), ((0, 32), Outcome.OK), ((1, 32), Outcome.FAILED), ((1, 33), Outcome.FAILED)],
    ids=["a gap before", "another partition", "accepted", "released"],
)
async def test_acknowledgement_has_failed_where_its_own_record_is_refused(
    refused: tuple[int, int], outcome: Outcome
) -> None:
    session = Session(History(), "", "t", 2)
    member = ShareMember(session, "share-1", "share", random.Random(1))

    async def commit() -> list[Rejected]:
        return [Rejected("t", refused[0], (refused[1],), ErrorCode.invalid_record_state)]

    consumer: Any = SimpleNamespace(commit=commit)
    await member._commit(consumer, {1: ((32,), (33,))})

    assert [one.outcome for one in session.history if isinstance(one, Acknowledgement)] == [outcome]
