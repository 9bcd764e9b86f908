"""For each rule of `tests.kit.checker` a bug of the product that it finds, and the seeded conversation for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.kit.checker import Rule
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug


@dataclass(frozen=True, slots=True)
class RuleBug:
    """A bug, and one of `tests.simulation.conversations` in which its rule is broken."""

    bug: PlantedBug
    conversation: str
    seed: int = 1


RULE_BUGS: Final = {
    Rule.LOST_WRITE: RuleBug(
        PlantedBug(
            "broker/tidegate/log/append.py",
            "        if isinstance(outcome, bytes):",
            "        if isinstance(outcome, bytes | Stale):",
            "P4: an append that another broker forestalled counts as done",
        ),
        "records",
    ),
    Rule.DUPLICATE: RuleBug(
        PLANTED_BUGS["stored-sequences-ignored"],
        "records",
    ),
    Rule.INCONSISTENT_OFFSET: RuleBug(
        PlantedBug(
            "broker/tidegate/log/append.py",
            "partial(self.reply, item, answer))\n            base = end",
            "partial(self.reply, item, answer))",
            "P4: every batch of an entry is acknowledged at the offset of the first",
        ),
        "records",
    ),
    Rule.ABORTED_READ: RuleBug(
        PlantedBug(
            "broker/tidegate/log/read.py",
            "return replace(found, aborted=state.transactions.aborted_between(offset, found.end_offset))",
            "return found",
            "P4: a reader of committed records does not learn which transactions aborted",
        ),
        "transactions",
    ),
    Rule.PRECOMMITTED_READ: RuleBug(
        PlantedBug(
            "broker/tidegate/log/open_transactions.py",
            "return min(first, next(iter(self.first.values()), high_watermark))",
            "return first",
            "P4: the last stable offset is beyond open transactions",
        ),
        "transactions",
    ),
    Rule.INT_POLL_SKIP: RuleBug(
        PlantedBug(
            "broker/tidegate/log/read.py",
            "                return _slice(buffers, size, end_offset, state, bases)\n            if not bases",
            "                continue\n            if not bases",
            "P4: a fetch passes over a batch that does not fit, and continues with one that does",
        ),
        "records",
    ),
    Rule.INT_NONMONOTONIC_POLL: RuleBug(
        PlantedBug(
            "broker/tidegate/apis/fetch_reading.py",
            "[*before.buffers, *found.buffers]",
            "[*found.buffers, *before.buffers]",
            "P4: a fetch that waited for more has the later records first",
        ),
        "records",
    ),
    Rule.POLL_SKIP: RuleBug(
        PlantedBug(
            "broker/tidegate/log/read.py",
            "        epoch = state.epoch_at(entry.base)\n        if entry.base >= offset",
            "        epoch = state.epoch_at(entry.base)\n        if entry.base < offset:\n            continue\n"
            "        if entry.base >= offset",
            "P4: a fetch from the middle of an entry begins with the next entry",
        ),
        "records",
    ),
    Rule.NONMONOTONIC_POLL: RuleBug(
        PlantedBug(
            "broker/tidegate/apis/fetch_reading.py",
            "        if found.log_start_offset > wanted.offset:\n            self._fail",
            "        if found.log_start_offset < wanted.offset:\n            self._fail",
            "P4: readers are refused their offsets, and start over",
        ),
        "records",
    ),
    Rule.INT_NONMONOTONIC_SEND: RuleBug(
        PlantedBug(
            "broker/tidegate/log/producers_table.py",
            "return Verdict.GAP if ahead < _AHEAD_MAX else Verdict.BEHIND",
            "return Verdict.ACCEPT",
            "P4: batches of a known producer are appended in the order in which they arrive",
        ),
        "transactions",
    ),
    Rule.NONMONOTONIC_SEND: RuleBug(
        PlantedBug(
            "broker/tidegate/log/admission.py",
            "if verdict is not Verdict.ACCEPT and not self._accepts_anyway(state, item, verdict, planned):",
            "if verdict is Verdict.DUPLICATE and not self._accepts_anyway(state, item, verdict, planned):",
            "P4: a batch does not wait for the one before it",
        ),
        "records",
    ),
    Rule.HOLE: RuleBug(
        PlantedBug(
            "broker/tidegate/log/outgoing.py",
            "end += item.batch.last_offset_delta + 1",
            "end += item.batch.last_offset_delta + 2",
            "P4: an entry is written one offset too late for each batch before it",
        ),
        "records",
    ),
    Rule.GROUP_SKIP: RuleBug(
        PlantedBug(
            "broker/tidegate/apis/plain_offset_fetch.py",
            "_PLAIN(index, int(offset[10:]), int(leader_epoch[15:]), no_metadata)",
            "_PLAIN(index, int(offset[10:]) + 1, int(leader_epoch[15:]), no_metadata)",
            "P3: a group continues behind the record that follows its committed offset",
        ),
        "group",
    ),
    Rule.COMMITTED_BACK: RuleBug(
        PlantedBug(
            "redis_scripts/groups/commit_offsets.lua",
            "if code == ERROR.NONE and entry_count > 0 then",
            "if code == ERROR.NONE and entry_count > 0 and not group.has_offsets then",
            "P3: commits are acknowledged, and only a group's first one is stored",
        ),
        "group",
    ),
    Rule.STALE_COMMIT: RuleBug(
        PlantedBug(
            "redis_scripts/groups/commit_offsets.lua",
            "if generation ~= group.generation and not",
            "if tonumber(generation) > tonumber(group.generation) and not",
            "P3: a member commits in a generation that is over",
        ),
        "group",
    ),
    Rule.TWO_OWNERS: RuleBug(
        PlantedBug(
            "redis_scripts/groups/sync_group.lua",
            'local assignment = redis.call("HGET", group.keys.assignments, member_id)',
            'local assignment = redis.call("HGET", group.keys.assignments, group.leader)',
            "P1: a follower that asks late owns what the leader owns",
        ),
        "group",
    ),
    Rule.GENERATION_BACK: RuleBug(
        PlantedBug(
            "redis_scripts/lib/join_phase.lua",
            "math.max(group.generation, floor) + 1)",
            "size == 0 and 0 or math.max(group.generation, floor) + 1)",
            "P2: a group whose last member left begins with generation 1 again",
        ),
        "group",
    ),
    Rule.UNOWNED_READ: RuleBug(
        PlantedBug(
            "broker/tidegate/apis/fetch_sessions.py",
            "        session.forget(request)\n",
            "",
            "P7: an incremental fetch answers partitions that its client has forgotten",
        ),
        "group",
    ),
    Rule.SHARED_TWICE: RuleBug(
        PlantedBug(
            "redis_scripts/share/acquire_records.lua",
            "local count, left = row.count + 1,",
            "local count, left = row.count,",
            "P3: two deliveries of a record have one number",
        ),
        "sharing",
    ),
    Rule.ACCEPTED_AGAIN: RuleBug(
        PlantedBug(
            "redis_scripts/share/acknowledge_records.lua",
            "    share_rows.finish(p, part)",
            "    share_rows.end_delivery(p, part)",
            "P3: an accepted record is available again",
        ),
        "sharing",
    ),
    Rule.SHARE_LOST: RuleBug(
        PlantedBug(
            "redis_scripts/share/acknowledge_records.lua",
            "    share_rows.end_delivery(p, part)",
            "    share_rows.finish(p, part)",
            "P3: a released record is finished",
        ),
        "sharing",
    ),
    Rule.OTHER_VALUE: RuleBug(
        PlantedBug(
            "broker/tidegate/log/entries.py",
            "                base = end\n            self.pieces = pieces",
            "            self.pieces = pieces",
            "P4: every batch of an entry is served with the offset of the first",
        ),
        "sharing",
    ),
    Rule.UNOWNED_ACKNOWLEDGEMENT: RuleBug(
        PLANTED_BUGS["share-acknowledged-by-anybody"],
        "sharing",
    ),
}
