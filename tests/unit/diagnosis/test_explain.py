"""The findings about a group follow from its snapshot, its partitions and its events alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.diagnosis.commit_progress import Progress
from tidegate.diagnosis.explain import GroupFinding, GroupSeverity, Partition, explain, summary
from tidegate.diagnosis.group_events import Event
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot, PendingMemberSnapshot

NOW = 1_795_000_000_000
TOPICS = frozenset({"orders"})


def member(name: str, **changes: Any) -> MemberSnapshot:
    """A dynamic member that is synced and sent a request a second ago."""
    values: dict[str, Any] = {
        "member_id": f"{name}-id",
        "instance_id": None,
        "client_id": name,
        "client_host": "10.0.0.1",
        "client_software": "",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 300_000,
        "joined_ms": NOW - 600_000,
        "last_contact_ms": NOW - 1_000,
        "session_ends_ms": NOW + 9_000,
        "phase": "synced",
        "leads": False,
        "topics": TOPICS,
        "owned": {"orders": (0,)},
    }
    return MemberSnapshot(**(values | changes))


def snapshot(*members: MemberSnapshot, **changes: Any) -> GroupSnapshot:
    """A Stable group of ten minutes."""
    values: dict[str, Any] = {
        "group_id": "billing",
        "org": "default",
        "id": "cgp_1",
        "tier": "org",
        "locator": "default/consumer-groups/billing",
        "type": "classic",
        "state": "Stable",
        "prev_state": "CompletingRebalance",
        "state_since_ms": NOW - 600_000,
        "created_ms": NOW - 900_000,
        "generation": 7,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": "",
        "reason": "",
        "join_deadline_ms": 0,
        "sync_deadline_ms": 0,
        "subscribed": ("orders",),
        "key": "tidegate:{co:1}:group:default:billing",
        "now_ms": NOW,
        "members": members,
    }
    return GroupSnapshot(**(values | changes))


def joining(*members: MemberSnapshot, age_ms: int = 60_000, **changes: Any) -> GroupSnapshot:
    """A group whose join barrier is open."""
    values = {
        "state": "PreparingRebalance",
        "prev_state": "Stable",
        "state_since_ms": NOW - age_ms,
        "join_deadline_ms": NOW + 30_000,
    }
    return snapshot(*members, **(values | changes))


def partition(number: int = 0, **changes: Any) -> Partition:
    """A partition read to its end."""
    values: dict[str, Any] = {
        "topic": "orders",
        "partition": number,
        "committed": 100,
        "commit_ms": NOW - 2_000,
        "metadata": "",
        "log_start": 0,
        "log_end": 100,
        "owner": "a-id",
    }
    return Partition(**(values | changes))


def event(kind: str, ago_ms: int = 60_000, name: str = "a", **changes: Any) -> Event:
    """Something that happened to a member."""
    made = Event(NOW - ago_ms, 6, kind, member_id=f"{name}-id", client_id=name, host="/10.0.0.1", broker="1")
    return replace(made, **changes)


def findings(
    of: GroupSnapshot,
    *events: Event,
    partitions: tuple[Partition, ...] = (partition(),),
    topics: frozenset[str] = TOPICS,
) -> list[GroupFinding]:
    return explain(of, partitions, events, topics)


def kinds(found: list[GroupFinding]) -> set[str]:
    """What is said, but for how the last rebalance went."""
    return {finding.kind for finding in found} - {"last_rebalance"}


def the(found: list[GroupFinding], kind: str) -> GroupFinding:
    (one,) = [finding for finding in found if finding.kind == kind]
    return one


def test_explain_healthy_group_has_no_findings() -> None:
    healthy = snapshot(member("a"))

    assert findings(healthy) == []
    assert summary(healthy, [], [partition(log_end=120)]) == (
        "Group billing is Stable since 2026-11-18 10:56:40 UTC (10 min), generation 7, 1 member, 20 records behind. "
        "Nothing is wrong."
    )


# -- barriers


def test_explain_names_members_missing_from_a_join_barrier() -> None:
    silent = member("b", phase="missing", last_contact_ms=NOW - 65_000, session_ends_ms=NOW + 5_000)
    found = the(findings(joining(member("a", phase="joined", last_contact_ms=None), silent)), "join_barrier_open")

    assert found.severity is GroupSeverity.STUCK
    assert found.sentence == ("The join barrier is open for 1 min: 1 of 2 members has not rejoined: b at 10.0.0.1.")
    assert found.evidence[0].startswith("b-id of b at 10.0.0.1: last request 1 min 5 s ago, silent since")
    assert "in 30 s" in found.evidence[1] and "removed" in found.evidence[1]
    assert "tidegate group evict billing b-id" in found.advice


def test_young_barrier_is_no_trouble() -> None:
    late = member("b", phase="missing", last_contact_ms=NOW - 1_500)
    found = findings(joining(member("a", phase="joined", last_contact_ms=None), late, age_ms=2_000))

    assert the(found, "join_barrier_open").severity is GroupSeverity.NOTE
    assert kinds(found) == {"join_barrier_open"}


def test_missing_member_that_heartbeats_is_busy() -> None:
    found = findings(joining(member("a", phase="joined", last_contact_ms=None), member("b", phase="missing")))

    assert "answered REBALANCE_IN_PROGRESS" in the(found, "join_barrier_open").evidence[0]
    assert the(found, "long_processing").sentence.startswith("b at 10.0.0.1 heartbeats but does not poll")


def test_explain_missing_member_of_a_dead_broker() -> None:
    missing = member("b", phase="missing", last_contact_ms=NOW - 20_000)
    found = findings(joining(member("a", phase="joined"), missing), event("lease_lost", 20_000, "b"))

    assert "a broker that is gone" in the(found, "join_barrier_open").evidence[0]


def test_static_members_are_not_removed_at_the_end_of_a_barrier() -> None:
    missing = member("b", phase="missing", instance_id="i-1")
    found = findings(joining(member("a", phase="joined", last_contact_ms=None), missing))

    assert "static members keep their place" in the(found, "join_barrier_open").evidence[1]


def test_initial_delay_is_no_trouble() -> None:
    new = joining(member("a", phase="joined", last_contact_ms=None), prev_state="Empty", age_ms=60_000)

    assert [finding.severity for finding in findings(new) if finding.kind == "initial_delay"] == [GroupSeverity.NOTE]


def test_ids_issued_and_not_used() -> None:
    waiting = joining(
        member("a", phase="joined", last_contact_ms=None),
        pending=(PendingMemberSnapshot("b-id", "b", "/10.0.0.2", NOW + 9_000),),
    )
    found = the(findings(waiting), "ids_not_used")

    assert found.severity is GroupSeverity.STUCK
    assert "b at 10.0.0.2" in found.sentence


def test_leader_that_has_not_assigned() -> None:
    waiting = snapshot(
        member("a", leads=True, phase="unsynced", last_contact_ms=NOW - 400),
        member("b", phase="waiting", last_contact_ms=None),
        member("c", phase="unsynced"),
        state="CompletingRebalance",
        state_since_ms=NOW - 20_000,
        sync_deadline_ms=NOW + 40_000,
        leader="a-id",
    )
    found = the(findings(waiting), "sync_barrier_open")

    assert found.severity is GroupSeverity.STUCK
    assert "a at 10.0.0.1 leads generation 7" in found.sentence
    assert found.evidence[:3] == (
        "a-id: last request 400 ms ago",
        "1 of 3 members wait for their assignment",
        "c at 10.0.0.1 did not ask for an assignment either",
    )


def test_member_that_never_asked_for_its_part() -> None:
    waiting = snapshot(member("a"), member("b", phase="unsynced", owned={}), sync_deadline_ms=NOW + 9_000)

    assert "b at 10.0.0.1" in the(findings(waiting), "not_synced").sentence


# -- what happens again and again


def rounds(cause: str, times: int, name: str = "a", **changes: Any) -> list[Event]:
    changes = {"duration_ms": 55_000} | changes
    return [event("rebalance_started", 60_000 * (times - n), name, cause=cause, **changes) for n in range(times)]


@pytest.mark.parametrize("cause", ["leader_rejoined", "subscription_changed"])
def test_generation_that_rises_with_the_same_members(cause: str) -> None:
    found = the(findings(snapshot(member("a")), *rounds(cause, 3, reason="metadata changed")), "rebalance_loop")

    assert "3 times in 2 min" in found.sentence
    assert 'it said "metadata changed"' in found.evidence


def test_cooperative_members_rebalance_twice_each_time_and_that_is_no_loop() -> None:
    reported = []
    for n in (5, 4, 3, 2):
        reported += [
            event("rebalance_started", 60_000 * n, f"new-{n}", cause="member_joined", duration_ms=60_000),
            event("rebalance_started", 60_000 * n - 2_000, "a", cause="subscription_changed", duration_ms=1_500),
        ]

    assert kinds(findings(snapshot(member("a")), *reported)) == set()


def test_twice_is_no_loop() -> None:
    assert kinds(findings(snapshot(member("a")), *rounds("leader_rejoined", 2))) == set()


def test_explain_ended_crash_loop_is_a_note() -> None:
    old = [replace(one, time_ms=one.time_ms - 15 * 60_000) for one in rounds("leader_rejoined", 3)]

    assert the(findings(snapshot(member("a")), *old), "rebalance_loop").severity is GroupSeverity.NOTE


def test_explain_old_events_are_omitted() -> None:
    old = [replace(one, time_ms=one.time_ms - 60 * 60_000) for one in rounds("leader_rejoined", 3)]

    assert kinds(findings(snapshot(member("a")), *old)) == set()


def test_many_rebalances_of_many_causes_are_a_loop() -> None:
    mixed = [
        event("rebalance_started", 10_000 * n, name, cause=cause)
        for n, (name, cause) in enumerate([("a", "leader_rejoined"), ("b", "session_timed_out")] * 3, 1)
    ][::-1]
    found = the(findings(snapshot(member("a"), member("b")), *mixed[:5]), "rebalance_loop")

    assert "causes: session timed out (3) and leader rejoined (2)" in found.evidence


def test_group_that_grows_is_no_loop() -> None:
    names = [f"m{n}" for n in range(6)]
    grown = [
        one
        for n, name in enumerate(names)
        for one in (
            event("member_joined", 60_000 - n, name),
            event("rebalance_started", 60_000 - n, name, cause="member_joined"),
        )
    ]

    assert kinds(findings(snapshot(*(member(name) for name in names)), *grown)) <= {"long_processing"}


def test_group_that_shrinks_is_no_loop() -> None:
    gone = [
        one
        for n, name in enumerate("bcdefg")
        for one in (
            event("member_left", 60_000 - n, name, duration_ms=9_000_000),
            event("rebalance_started", 60_000 - n, name, cause="member_left"),
        )
    ]

    assert kinds(findings(snapshot(member("a")), *gone)) == set()


def test_group_that_is_restarted_one_by_one_is_no_loop() -> None:
    reported = []
    for n, name in enumerate("abcdef"):
        reported += [
            event("member_left", 90_000 - 10_000 * n, name, duration_ms=9_000_000),
            event("rebalance_started", 90_000 - 10_000 * n, name, cause="member_left", duration_ms=5_000),
            event("member_joined", 85_000 - 10_000 * n, name),
            event("rebalance_started", 85_000 - 10_000 * n, name, cause="member_joined", duration_ms=5_000),
        ]
    everyone = [member(name, owned={"orders": (0,)}) for name in "abcdef"]

    assert kinds(findings(snapshot(*everyone), *reported)) == set()


def durations(name: str, times: int, life_ms: int, end: str, **changes: Any) -> list[Event]:
    reported = []
    for n in range(times):
        reported.append(event("member_joined", 60_000 * (times - n), name))
        reported.append(event(end, 60_000 * (times - n) - life_ms, name, duration_ms=life_ms, **changes))
    return reported


@pytest.mark.parametrize(
    ("end", "changes", "how"),
    [
        ("member_expired", {"cause": "session_timed_out"}, ", session timeout included"),
        ("member_left", {"reason": "the consumer is being closed"}, ", then leaves"),
    ],
)
def test_explain_member_that_joins_and_leaves(end: str, changes: dict[str, str], how: str) -> None:
    found = the(findings(snapshot(member("a")), *durations("b", 3, 20_000, end, **changes)), "crash_loop")

    assert found.sentence.startswith("b at 10.0.0.1 comes and goes: it joined 3 times")
    assert found.evidence[0] == f"it is a member for 20 s (median){how}"


def test_explain_single_member_that_rejoins_disturbs_no_other() -> None:
    found = the(findings(snapshot(state="Empty"), *durations("b", 3, 20_000, "member_left")), "crash_loop")

    assert found.evidence == ("it is a member for 20 s (median), then leaves",)


def test_guard_of_a_reset_is_no_crash_loop() -> None:
    reported = durations("tidegate-group@host:17", 3, 1_000, "member_left")

    assert "crash_loop" not in kinds(findings(snapshot(member("a")), *reported))


def test_rolling_restart_is_no_crash_loop() -> None:
    reported = [one for name in "bcdef" for one in durations(name, 1, 20_000, "member_left")]

    assert "crash_loop" not in kinds(findings(snapshot(member("a")), *reported))


def test_explain_member_that_stays_long_and_rejoins_is_no_crash_loop() -> None:
    reported = durations("b", 3, 6 * 60_000, "member_left")

    assert "crash_loop" not in kinds(findings(snapshot(member("a")), *reported))


def test_member_that_never_syncs() -> None:
    late = [event("member_expired", 60_000 * n, "b", cause="did_not_sync") for n in (3, 2, 1)]

    assert kinds(findings(snapshot(member("a")), *late)) == {"never_syncs"}


def test_leader_that_never_syncs() -> None:
    reported = []
    for n in (3, 2, 1):
        reported += [
            event("rebalance_started", 60_000 * n, "b", cause="did_not_sync"),
            event("barrier_joined", 60_000 * n - 10, "b", members=2),
            event("member_expired", 60_000 * n - 9_000, "b", cause="did_not_sync"),
        ]

    assert "leader_never_syncs" in kinds(findings(snapshot(member("a")), *reported))


def test_members_that_overstay_their_poll_interval() -> None:
    late = [event("member_expired", 60_000 * n, "b", cause="did_not_rejoin") for n in (3, 2)]
    left = event("member_left", 30_000, "b", reason="consumer poll timeout has expired.", duration_ms=9_000)
    found = the(findings(snapshot(member("a")), *late, left), "long_processing")

    assert "lost its place 3 times" in found.sentence
    assert found.evidence == (
        'it left by itself 1 time, saying "consumer poll timeout has expired."',
        "it did not rejoin before the barrier ended 2 times",
    )


def test_two_processes_with_one_instance_id() -> None:
    swaps = [
        event("member_replaced", 60_000 * n, name, instance_id="i-1") for n, name in ((3, "b"), (2, "c"), (1, "b"))
    ]
    found = the(findings(snapshot(member("a")), *swaps), "static_flapping")

    assert found.sentence.startswith("Several processes take turns as static member i-1")
    assert found.evidence == ("b at 10.0.0.1: 2 times", "c at 10.0.0.1: 1 time")


def test_one_static_process_that_restarts() -> None:
    swaps = [event("member_replaced", 60_000 * n, "b", instance_id="i-1") for n in (3, 2, 1)]

    assert "restarts again and again" in the(findings(snapshot(member("a")), *swaps), "static_flapping").sentence


def test_explain_evidence_of_hundreds_is_truncated() -> None:
    missing = [member(f"m{n:03}", phase="missing", last_contact_ms=NOW - 65_000) for n in range(500)]
    found = the(findings(joining(*missing)), "join_barrier_open")

    assert len(found.evidence) == 12
    assert found.evidence[10] == "and 490 more"
    assert "m000 at 10.0.0.1, m001 at 10.0.0.1, m002 at 10.0.0.1, m003 at 10.0.0.1 and 496 more" in found.sentence


# -- records that wait


HOUR_MS = 3_600_000


def unread() -> Partition:
    """50 records behind, last committed by members that are gone."""
    return partition(log_end=150, owner=None, commit_ms=NOW - 48 * HOUR_MS)


def test_explain_members_left_with_lag_is_a_note() -> None:
    empty = snapshot(state="Empty", state_since_ms=NOW - HOUR_MS)
    found = the(
        findings(empty, event("member_left", HOUR_MS), partitions=(unread(),)),
        "empty_with_lag",
    )

    assert found.severity is GroupSeverity.NOTE
    assert found.sentence == "The group has had no members for 1 h, and 50 records wait."
    assert found.evidence[1].startswith("the last member that left: a at 10.0.0.1 left by itself")
    assert "while it is not polled" in found.advice


@pytest.mark.parametrize(
    ("empty_ms", "severity"),
    [(4_999, GroupSeverity.NOTE), (5_000, GroupSeverity.TROUBLE), (24 * HOUR_MS, GroupSeverity.NOTE)],
)
def test_explain_members_expired_with_lag_is_trouble_for_a_day(empty_ms: int, severity: GroupSeverity) -> None:
    empty = snapshot(state="Empty", state_since_ms=NOW - empty_ms)
    expired = event("member_expired", empty_ms, cause="session_timed_out")

    found = findings(empty, expired, partitions=(unread(),))
    assert the(found, "empty_with_lag").severity is severity


@pytest.mark.parametrize("protocol_type", ["", "consumer"])
@pytest.mark.parametrize(
    ("commit_age_ms", "kind", "severity"),
    [
        (299_999, "commits_without_members", GroupSeverity.NOTE),
        (300_000, "empty_with_lag", GroupSeverity.TROUBLE),
        (24 * HOUR_MS, "empty_with_lag", GroupSeverity.NOTE),
    ],
)
def test_explain_readers_without_members_are_judged_by_their_last_commit(
    protocol_type: str, commit_age_ms: int, kind: str, severity: GroupSeverity
) -> None:
    empty = snapshot(state="Empty", state_since_ms=NOW - 48 * HOUR_MS, protocol_type=protocol_type)
    reads = partition(log_end=150, owner=None, commit_ms=NOW - commit_age_ms)

    assert the(findings(empty, partitions=(reads,)), kind).severity is severity


@pytest.mark.parametrize(
    ("stalled_ms", "is_begin", "kind", "text"),
    [
        (299_999, True, "commits_without_members", "50 records wait."),
        (299_999, False, "commits_without_members", "Whether they advance is not known: no lag samples of 5 min."),
        (300_000, True, "commits_stalled", "They did not advance for 5 min, while 50 records wait."),
        (48 * HOUR_MS, False, "commits_stalled", "They did not advance for at least 2 d, while 50 records wait."),
    ],
)
def test_explain_readers_that_commit_are_judged_by_when_their_offsets_advanced(
    stalled_ms: int, is_begin: bool, kind: str, text: str
) -> None:
    empty = snapshot(state="Empty", state_since_ms=NOW - 96 * HOUR_MS, protocol_type="")
    reads = partition(log_end=150, owner=None, commit_ms=NOW - 1_000)

    [found] = explain(empty, [reads], [], TOPICS, Progress(NOW - stalled_ms, is_begin))

    assert found.kind == kind and found.sentence.endswith(text)
    assert found.severity is (GroupSeverity.TROUBLE if kind == "commits_stalled" else GroupSeverity.NOTE)


def test_explain_silent_member_is_not_taken_for_a_slow_poll() -> None:
    gone = event("member_expired", 3_600_000, cause="session_timed_out")
    found = the(findings(snapshot(state="Empty"), gone, partitions=(unread(),)), "empty_with_lag")

    assert "polled" not in found.advice


def test_empty_group_that_read_everything_is_well() -> None:
    assert findings(snapshot(state="Empty"), partitions=(partition(owner=None),)) == []


def test_member_that_commits_nothing() -> None:
    quiet = partition(commit_ms=NOW - 40_000, log_end=900)
    found = the(findings(snapshot(member("a")), partitions=(quiet,)), "long_processing")

    assert "committed nothing for 40 s while 800 records" in found.sentence


@pytest.mark.parametrize(
    "changes",
    [{"commit_ms": NOW - 14_000, "log_end": 900}, {"commit_ms": NOW - 40_000}, {"owner": None, "log_end": 100}],
    ids=["it committed lately", "nothing waits", "it is not the owner"],
)
def test_member_that_is_not_quiet(changes: dict[str, Any]) -> None:
    assert "long_processing" not in kinds(findings(snapshot(member("a")), partitions=(partition(**changes),)))


def test_members_without_partitions() -> None:
    idle = snapshot(member("a"), member("b", owned={}))
    found = the(findings(idle), "idle_members")

    assert found.severity is GroupSeverity.NOTE
    assert "1 of 2 members owns no partition: the topics they share have 1 partition." in found.sentence


def test_generation_of_a_moment_ago_may_leave_partitions_out() -> None:
    young = snapshot(member("a"), member("b", owned={}), state_since_ms=NOW - 1_000)

    assert kinds(findings(young, partitions=(partition(), partition(1, owner=None, log_end=170)))) == set()


def test_partitions_without_members() -> None:
    left = partition(1, owner=None, log_end=170)
    found = the(findings(snapshot(member("a")), partitions=(partition(), left)), "unowned_partitions")

    assert found.evidence == ("orders 1",)
    assert "70 records wait there" in found.sentence


def test_topic_that_is_missing() -> None:
    found = the(findings(snapshot(member("a", topics=frozenset({"odrers"}), owned={})), partitions=()), "topic_missing")

    assert found.severity is GroupSeverity.STUCK
    assert "odrers, which does not exist" in found.sentence


def test_records_that_were_deleted_before_they_were_read() -> None:
    found = the(
        findings(snapshot(member("a")), partitions=(partition(committed=10, log_start=40),)), "deleted_before_read"
    )

    assert found.sentence.startswith("30 records were deleted before the group read them")


def test_offsets_beyond_the_end() -> None:
    assert "beyond_end" in kinds(findings(snapshot(member("a")), partitions=(partition(committed=200),)))


def test_explain_reset_is_reported() -> None:
    moved = event("offsets_reset", 30_000, "ops", detail="orders:0 100 0")

    assert (
        "ops at 10.0.0.1 reset offsets: orders:0 100 0"
        in the(findings(snapshot(member("a")), moved), "offsets_reset").sentence
    )


def test_last_rebalance_and_its_cause() -> None:
    reported = [
        event("member_left", 60_000, "b", reason="closing", duration_ms=900_000),
        event("rebalance_started", 60_000, "b", cause="member_left", reason="closing", duration_ms=840_000),
        event("barrier_joined", 58_000, "a", generation=7, members=1, duration_ms=2_000, detail="range"),
        event("assignment_stored", 57_000, "a", generation=7),
        event("stable", 57_000, "", generation=7),
    ]
    found = the(findings(snapshot(member("a")), *reported), "last_rebalance")

    assert found.sentence == (
        'The last rebalance began at 11:05:40 UTC, 1 min ago: b at 10.0.0.1 left by itself, saying "closing"; '
        "it was over 3.0 s later, in generation 7."
    )
    assert found.evidence == ("before it the group was stable for 14 min",)


def test_explain_lists_the_worst_first() -> None:
    waiting = joining(member("a", phase="missing", last_contact_ms=NOW - 65_000))
    found = findings(waiting, *rounds("leader_rejoined", 3), partitions=(partition(log_end=50),))

    assert [finding.severity for finding in found] == sorted((one.severity for one in found), reverse=True)
    assert found[0].kind == "join_barrier_open" and found[-1].severity is GroupSeverity.NOTE
