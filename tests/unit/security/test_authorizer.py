"""Decisions that are remembered, and what bounds their memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.security.acls import AclTable, Operation, ResourceType
from tidegate.security.authorizer import REMEMBERED_NAME_MAX, Authorizer, Requester
from tidegate.settings import Settings

MALLORY = Requester("User:mallory", "192.0.2.7", "default")


@pytest.mark.parametrize(("length", "remembered"), [(REMEMBERED_NAME_MAX, 1), (REMEMBERED_NAME_MAX + 1, 0)])
def test_allows_remembers_no_long_names(length: int, remembered: int) -> None:
    """A client chooses the names of groups, of up to 32 kB each."""
    rules: Any = SimpleNamespace(version=0, table=lambda org: AclTable())
    authorizer = Authorizer(Settings(), rules)

    assert not authorizer.allows(MALLORY, Operation.READ, ResourceType.GROUP, "g" * length)
    assert len(authorizer._remembered) == remembered
