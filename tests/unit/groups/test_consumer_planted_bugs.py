"""Planted bugs in the decisions on consumer groups: the state machine of `test_consumer_decisions` finds all."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from typing import Any

import pytest

from tests.model.mutations import InMethod, replaced
from tests.unit.groups import test_consumer_decisions as machine
from tidegate.groups.consumer import decisions, rollouts
from tidegate.groups.consumer.model import EpochGroup

BUGS = [
    (
        decisions,
        "reconcile",
        "if owners.get(partition, member.member_id) == member.member_id",
        "",
        "two owners at once",
    ),
    (
        decisions,
        "reconcile",
        "if revoking and (owned is None or owned & revoking):",
        "if False:",
        "no revocation asked",
    ),
    (
        decisions,
        "reconcile",
        "if owned is None or owned & member.revoking:",
        "if owned is None:",
        "revocation not confirmed",
    ),
    (
        decisions,
        "reconcile",
        "        epoch=target_epoch,\n",
        "        epoch=member.epoch,\n",
        "target epoch not reached",
    ),
    (decisions, "reconcile", "{**retained, **dict.fromkeys(granted, target_epoch)}", "retained", "nothing granted"),
    (decisions, "refresh_target", "found != group.topics or assignor", "assignor", "new partitions not assigned"),
    (decisions, "_enter", "        group.bump()\n", "        pass\n", "changed subscription without a target"),
    (decisions, "_take_over", "group.set_target(returned.member_id, target)", "pass", "successor without a target"),
    (decisions, "remove_member", "    group.bump()\n", "", "partitions of an expired member not assigned"),
    (rollouts, "remove_member", "    group.bump()\n", "", "partitions of a leaver not assigned"),
]


def plant(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str) -> None:
    """Replace a function where `module` uses it by its source with one change."""
    function = getattr(module, name)
    source = replaced(textwrap.dedent(inspect.getsource(function)), old, new)
    code = compile(source, f"<{name} with a bug>", "exec", __future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    monkeypatch.setattr(module, name, made[name])


def assert_found() -> None:
    """Some seed fails."""
    for seed in machine.SEEDS:
        try:
            machine.test_decide_keeps_one_owner_and_reaches_the_target(seed)
        except (AssertionError, KeyError):
            return
    pytest.fail("no seed finds the bug")


@pytest.mark.parametrize(("module", "name", "old", "new", "bug"), BUGS, ids=[bug for *_, bug in BUGS])
def test_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str, bug: str
) -> None:
    plant(monkeypatch, module, name, old, new)
    assert_found()


def test_planted_bug_partitions_of_a_removed_member_stay_owned() -> None:
    with InMethod(EpochGroup, "remove", "self._forget(member)", "pass").planted():
        assert_found()
