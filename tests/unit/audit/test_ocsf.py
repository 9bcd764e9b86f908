"""Audit events have the attributes that OCSF 1.0 requires of their classes, and no text without bounds."""

from __future__ import annotations

import json

import pytest

from tidegate.audit.ocsf import AccountActivity, Activity, Origin, account_change, api_activity, authentication

ORIGIN = Origin("User:alice", "acme", "192.0.2.7", 50_000, "SASL", "app")
REQUIRED = {
    "activity_id", "category_uid", "class_uid", "metadata", "severity_id", "type_uid", "status_id", "actor",
    "src_endpoint",
}  # fmt: skip
EVENTS = [
    (3002, 3002_01, authentication(ORIGIN, "SCRAM-SHA-512"), {"user"}),
    (3001, 3001_03, account_change(ORIGIN, "bob", AccountActivity.PASSWORD_CHANGE), {"user"}),
    (6003, 6003_04, api_activity(ORIGIN, "delete_topics", Activity.DELETE, [("topic", "t")]), {"api", "resources"}),
]


@pytest.mark.parametrize(("class_uid", "type_uid", "event", "own"), EVENTS)
def test_event_has_what_its_class_requires(class_uid: int, type_uid: int, event: dict, own: set[str]) -> None:  # type: ignore[type-arg]
    assert event.keys() >= REQUIRED | own
    assert (event["class_uid"], event["type_uid"]) == (class_uid, type_uid)
    assert event["category_uid"] == class_uid // 1000
    assert event["metadata"]["version"] == "1.0.0"
    assert event["actor"]["user"] == {"name": "User:alice", "org": {"name": "acme"}}
    assert event["src_endpoint"] == {"ip": "192.0.2.7", "port": 50_000}
    assert (event["status"], event["status_id"]) == ("Success", 1)


def test_failure_has_its_reason() -> None:
    event = api_activity(ORIGIN, "fetch", Activity.READ, (), "TOPIC_AUTHORIZATION_FAILED")

    assert (event["status_id"], event["status_detail"]) == (2, "TOPIC_AUTHORIZATION_FAILED")
    assert event["api"]["response"] == {"code": 1, "error": "TOPIC_AUTHORIZATION_FAILED"}


def test_size_is_bounded_whatever_a_client_sends() -> None:
    origin = Origin("User:" + "u" * 100_000, "acme", "192.0.2.7", 1, "SASL", "c" * 100_000)
    event = api_activity(origin, "create_topics", Activity.CREATE, [("topic", "t" * 10_000)] * 5_000)

    assert len(json.dumps(event)) < 16_000
    assert event["unmapped"] == {"resources_left_out": 4_980}
