"""The comparison itself: what differs is found, what cannot agree is not, and the page of differences is in step."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember

from tests.conformance.differential import allowed, tested
from tests.conformance.differential.messages import VERSIONS, build
from tests.conformance.differential.normalise import Names, normalise
from tests.conformance.differential.observed import ABSENT, CLOSED, PARKED, Difference, compare
from tests.conformance.differential.report import Report
from tests.kit.wire import decode_response, encode_request

REPOSITORY = Path(__file__).resolve().parents[3]


def joined(*names: str, **changes: Any) -> Any:
    """A leader's answer as one target gives it: ids of its own, members in an order of its own."""
    ids = [f"client-{uuid.uuid4()}" for _ in names]
    reported = Names("the group")
    for name, member_id in zip(names, ids, strict=True):
        reported.learn(member_id, name)
    values: dict[str, Any] = {
        "throttle_time": timedelta(0),
        "error_code": ErrorCode.none,
        "generation_id": 3,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": ids[names.index("one")],
        "skip_assignment": False,
        "member_id": ids[names.index("one")],
        "members": tuple(
            JoinGroupResponseMember(member_id=member_id, group_instance_id=None, metadata=name.encode())
            for name, member_id in zip(names, ids, strict=True)
        ),
    }
    return normalise("JoinGroup", JoinGroupResponse(**(values | changes)), reported)


def test_answers_with_ids_and_orders_of_their_own_agree() -> None:
    count, unlike = compare(joined("one", "two"), joined("two", "one"))

    assert (count, unlike) == (15, [])


@pytest.mark.parametrize(
    ("field", "planted"),
    [
        ("throttle_time", timedelta(milliseconds=1)),
        ("error_code", ErrorCode.unknown_member_id),
        ("generation_id", 4),
        ("protocol_type", None),
        ("protocol_name", "rang"),
        ("leader", "client-7f1e6c52-9d0b-4a3e-8a55-0c2f6f0d9b11"),  # fixed: it names the test
        ("skip_assignment", True),
        ("member_id", ""),
    ],
)
def test_planted_wrong_field_is_found(field: str, planted: Any) -> None:
    _, unlike = compare(joined("one", "two"), joined("two", "one", **{field: planted}))

    assert [path for path, _, _ in unlike] == [field]


def test_planted_wrong_member_is_found() -> None:
    _, unlike = compare(joined("one", "two"), joined("one", "three"))
    assert {path for path, _, _ in unlike} == {"members[1].member_id", "members[1].metadata"}

    _, unlike = compare(joined("one", "two"), joined("one"))
    assert ("members.length", 2, 1) in unlike
    assert ("members[1].metadata", b"two", ABSENT) in unlike


@pytest.mark.parametrize("other", [PARKED, CLOSED])
def test_no_answer_is_not_an_answer(other: str) -> None:
    assert compare(joined("one"), other) == (1, [("", joined("one"), other)])
    assert compare(other, other) == (1, [])


def test_prefix_of_an_id_is_compared() -> None:
    first, second = Names("g"), Names("g")
    ids = [f"client-{uuid.uuid4()}", f"s1-{uuid.uuid4()}"]
    first.learn(ids[0], "one")
    second.learn(ids[1], "one")

    assert first.member(ids[0]) != second.member(ids[1])
    assert first.member(ids[1]) == "s1-<?>"


@pytest.mark.parametrize(("api", "version"), [(api, version) for api, served in VERSIONS.items() for version in served])
def test_difference_is_not_allowed_by_chance(api: str, version: int) -> None:
    for kafka, tidegate in (("none", "unknown_member_id"), ("none", "illegal_generation"), (1, 2), (PARKED, "none")):
        whole: tuple[Any, Any] = ({"error_code": kafka, "groups": []}, {"error_code": tidegate, "groups": []})
        planted = Difference("c", 1, api, version, "error_code", kafka, tidegate, "", frozenset({"leader x"}), whole)
        assert allowed.find(planted) is None


@pytest.mark.parametrize("one", tested.TESTED, ids=lambda one: one.test)
def test_difference_names_its_test(one: tested.Tested) -> None:
    path, _, function = one.test.partition("::")
    assert f"def {function}(" in (REPOSITORY / "tests" / path).read_text()


def test_allowed_differences_have_keys_of_their_own() -> None:
    keys = [rule.key for rule in allowed.RULES]

    assert len(set(keys)) == len(keys)
    assert all(dataclasses.astuple(rule)[1:5] for rule in allowed.RULES)


def test_stale_allowance_is_reported() -> None:
    report = Report()
    report.allowed[allowed.RULES[0].key] += 1

    assert [line for line in report.lines(complete=True) if allowed.RULES[1].key in line] == [
        f"  never  {allowed.RULES[1].key}"
    ]


def test_page_of_differences_is_in_step() -> None:
    assert (REPOSITORY / "docs" / "differences.md").read_text() == allowed.markdown()


def test_requests_leave_out_what_a_version_has_not() -> None:
    values = {"group_id": "g", "member_id": "m", "members": [{"member_id": "m", "group_instance_id": None}]}

    assert build("LeaveGroup", 2, values).member_id == "m"
    assert build("LeaveGroup", 4, values).members[0].member_id == "m"
    assert encode_request(build("Heartbeat", 0, values | {"generation_id": 1}), 1)[4:8] == b"\0\x0c\0\0"
    with pytest.raises(AssertionError):
        decode_response(12, 0, b"\0\0\0\1\0\0\0")
