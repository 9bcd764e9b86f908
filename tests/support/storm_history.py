"""The promises of a storm, from what its members saw and from the coordinator's own events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from tests.support.storm_members import REBALANCE_MS, SESSION_MS, STRIDE, Observations, StormMember

CLOCK_S = 0.005
"""Two clocks read on one machine, and Redis's whole milliseconds."""


def violations(members: Sequence[StormMember], events: Sequence[Mapping[str, str]]) -> list[str]:
    """What a group's members and events say against the promises; nothing, if all hold."""
    observed = sorted((one for member in members for one in member.history), key=lambda one: one.answered)
    unanswered = {place for member in members for place in member.unanswered}
    return [
        *_owners(observed),
        *_generations(observed, events),
        *_stale_commits(observed),
        *_lost_commits(observed, unanswered),
        *_removals(observed, events),
    ]


def _owners(observed: Sequence[Observations]) -> list[str]:
    """P1: within a generation one owner a partition, and an assignment that never changes."""
    wrong = []
    assigned: dict[tuple[int, str], tuple[int, ...]] = {}
    owners: dict[tuple[int, int], str] = {}
    for one in observed:
        if one.kind != "sync" or one.code is not ErrorCode.none:
            continue
        if assigned.setdefault((one.generation, one.member_id), one.assignment) != one.assignment:
            wrong.append(f"another assignment than {assigned[one.generation, one.member_id]}: {one}")
        for partition in one.assignment:
            if owners.setdefault((one.generation, partition), one.member_id) != one.member_id:
                wrong.append(f"{partition} is {owners[one.generation, partition]}'s: {one}")
    return wrong


def _generations(observed: Sequence[Observations], events: Sequence[Mapping[str, str]]) -> list[str]:
    """P2: generations only grow, in the coordinator's order and in everybody's."""
    wrong = []
    numbers = [int(event["generation"]) for event in events]
    if numbers != sorted(numbers):
        wrong.append(f"generations of events fall: {numbers}")
    joins = [one for one in observed if one.kind == "join" and one.code is ErrorCode.none]
    for place, later in enumerate(joins):
        for earlier in joins[:place]:
            if earlier.answered < later.sent and earlier.generation > later.generation:
                wrong.append(f"generation fell from {earlier} to {later}")
    return wrong


def _stale_commits(observed: Sequence[Observations]) -> list[str]:
    """P3: once a generation has opened nobody commits in an older one."""
    opened: dict[int, float] = {}
    for one in observed:
        if one.kind == "join" and one.code is ErrorCode.none:
            opened.setdefault(one.generation, one.answered)
    return [
        f"accepted after generation {generation} had opened: {one}"
        for one in observed
        if one.kind == "commit" and one.code is ErrorCode.none
        for generation, at in opened.items()
        if generation > one.generation and at < one.sent
    ]


def _lost_commits(observed: Sequence[Observations], unanswered: set[tuple[int, int]]) -> list[str]:
    """P3: what is fetched is the last acknowledged commit, or one that was never answered and is not of an older one.

    An offset says its generation, and within it one owner counts up.
    """
    wrong = []
    acknowledged: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for one in observed:
        if one.kind == "commit" and one.code is ErrorCode.none:
            for partition, offset in one.offsets.items():
                acknowledged[partition].append((one.answered, offset))
    for one in observed:
        if one.kind != "fetched":
            continue
        for partition, found in one.offsets.items():
            least = max((offset for at, offset in acknowledged[partition] if at < one.sent), default=-1)
            late = (partition, found) in unanswered and found // STRIDE == least // STRIDE
            if found < least and not late:
                wrong.append(f"{partition} had {least}: {one}")
    return wrong


def _removals(observed: Sequence[Observations], events: Sequence[Mapping[str, str]]) -> list[str]:
    """P5: who was removed was silent for a session, or missed a barrier that was open for long enough."""
    wrong = []
    rebalance_began = barrier_ended = 0.0
    for event in events:
        at = int(event["time"]) / 1000
        if event["kind"] == "rebalance_started":
            rebalance_began = at
        elif event["kind"] == "barrier_joined":
            barrier_ended = at
        elif event["kind"] == "member_expired":
            own = [one for one in observed if one.member_id == event["member"] and one.answered < at]
            excuse = {
                "session_timed_out": at - max(barrier_ended, _on_message(own)) >= SESSION_MS / 1000 - CLOCK_S,
                "did_not_rejoin": at - rebalance_began >= REBALANCE_MS / 1000 - CLOCK_S,
                "did_not_sync": at - barrier_ended >= REBALANCE_MS / 1000 - CLOCK_S
                and not any(one.kind == "sync" and _in(one, event) for one in own),
            }
            if not excuse[event["cause"]]:
                wrong.append(f"removed without a reason: {dict(event)}; last request {own[-1:]}")
    return wrong


def _in(one: Observations, event: Mapping[str, str]) -> bool:
    return one.code is ErrorCode.none and one.generation == int(event["generation"])


def _on_message(own: Sequence[Observations]) -> float:
    """The latest sure sign of a member: when its last request that extends a session was sent.

    As in Kafka those are heartbeats and commits; the end of a join barrier gives every member a new session.
    """
    return max((one.sent for one in own if _extends_session(one)), default=0.0)


def _extends_session(one: Observations) -> bool:
    if one.kind == "heartbeat":
        return one.code in (ErrorCode.none, ErrorCode.rebalance_in_progress)
    return one.kind == "commit" and one.code is ErrorCode.none
