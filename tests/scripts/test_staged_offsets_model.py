"""Random stages, ends in small parts, commits and deletions, beside an older broker: what is stored equals a model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tests.scripts.test_staged_offsets import committed, listed, older_list
from tidegate.groups import staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import entry_json
from tidegate.groups.retention import FORGET_TOPIC
from tidegate.store import scripts
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NAMES = [f"t:{index}" for index in range(14)]
PRODUCERS = range(1, 6)
STEPS = 80
PART = 3


@dataclass
class Model:
    """What is stored: of each partition the latest commit counts, whenever its transaction ended."""

    store: Store
    keys: GroupKeys
    random: Random
    older: float
    """How often an older broker writes the list in between."""
    commits: int = 0
    committed: dict[str, int] = field(default_factory=dict)
    staged: dict[int, dict[str, int]] = field(default_factory=dict)
    ending: dict[int, tuple[int, dict[str, int], bool]] = field(default_factory=dict)
    """Producer -> when its transaction was decided, what it staged, whether it is committed."""
    ended: dict[int, int] = field(default_factory=dict)

    async def step(self) -> None:
        """One change, and perhaps the list of an older broker behind it."""
        [change] = self.random.choices([self.stage, self.end, self.commit, self.delete], [45, 30, 15, 10])
        await change()
        fields = [name.decode() for name in await self.store.command("HKEYS", self.keys.staged)]
        if fields and self.random.random() < self.older:
            names = dict.fromkeys(name.partition(":")[2] for name in fields)
            await self.store.command("HSET", self.keys.offsets, ":-1", older_list(names))

    async def stage(self) -> None:
        open_ones = [one for one in PRODUCERS if one not in self.ending]
        if open_ones:
            producer_id, names = self.random.choice(open_ones), self.random.sample(NAMES, self.random.randint(1, 9))
            self.commits += 1
            entries = [text for name in names for text in (name, entry_json(self.commits, -1, "ab", ""))]
            ended_ms = self.ended.get(producer_id, -1)
            await staged_offsets.stage(self.store, self.keys, Commit(-1, "", None, entries), producer_id, ended_ms)
            self.staged.setdefault(producer_id, {}).update(dict.fromkeys(names, self.commits))

    async def end(self) -> None:
        """A further part of an end, or the first one of another."""
        producer_id = self.random.choice([*self.ending] * 5 + [*PRODUCERS])
        if producer_id not in self.ending:
            decided_ms = self.ended.get(producer_id, 1_000) + 1
            taken = dict(self.staged.get(producer_id, {}))
            self.ending[producer_id] = decided_ms, taken, self.random.random() < 0.6
        decided_ms, taken, is_commit = self.ending[producer_id]
        if await self._end_part(producer_id, decided_ms, is_commit):
            left = await self.store.command("HKEYS", self.keys.staged)
            own = {name.decode().partition(":")[2] for name in left if name.startswith(b"%d:" % producer_id)}
            self.staged[producer_id] = {name: at for name, at in taken.items() if name in own}
            return
        del self.ending[producer_id]
        self.staged.pop(producer_id, None)
        self.ended[producer_id] = decided_ms
        for name, commit in taken.items():
            if is_commit and commit > self.committed.get(name, 0):
                self.committed[name] = commit

    async def _end_part(self, producer_id: int, decided_ms: int, is_commit: bool) -> Any:
        text = scripts._render("groups/end_staged")[0].replace(b"ENTRIES_MAX = 1000", b"ENTRIES_MAX = %d" % PART)
        key_names = self.keys.offsets, self.keys.staged, self.keys.shard_keys.ended_transactions
        args = producer_id, decided_ms, int(is_commit), 86_400_000, self.keys.ref
        return (await self.store.command("EVAL", text, 3, *key_names, *args))[1]

    async def commit(self) -> None:
        """A plain commit, in a later millisecond than what was staged."""
        await asyncio.sleep(0.02)
        seconds, microseconds = await self.store.command("TIME")
        self.commits += 1
        name, now_ms = self.random.choice(NAMES), int(seconds) * 1_000 + int(microseconds) // 1_000
        entry = entry_json(self.commits, -1, "ab", "") + f',"commit_time":{now_ms}}}'
        await self.store.command("HSET", self.keys.offsets, name, entry)
        self.committed[name] = self.commits
        await asyncio.sleep(0.003)

    async def delete(self) -> None:
        """Of a topic that was deleted, while no end is under way: the model applies its offsets at once."""
        if not self.ending:
            names = self.random.sample(NAMES, 3)
            await self.store.run(FORGET_TOPIC, [self.keys.offsets, self.keys.group, self.keys.staged], "", *names)
            for stored in (self.committed, *self.staged.values()):
                for name in names:
                    stored.pop(name, None)

    async def check(self) -> None:
        fields = {name.decode() for name in await self.store.command("HKEYS", self.keys.staged)}
        assert fields == {f"{producer_id}:{name}" for producer_id, own in self.staged.items() for name in own}
        names = {name for own in self.staged.values() for name in own}
        with_applied = names | {name for _, taken, _ in self.ending.values() for name in taken}
        found = set(await listed(self.store, self.keys))
        assert names <= found <= with_applied
        if not self.older:
            assert found == with_applied, "until a transaction has ended, none of its offsets is stable"
        if not self.ending:
            assert await committed(self.store, self.keys) == self.committed


@pytest.mark.parametrize("older", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(6))
async def test_staged_offsets_equal_their_model(store: Store, seed: int, older: float) -> None:
    model = Model(store, store.group_keys("default", "g"), Random(seed), older)
    for _ in range(STEPS):
        await model.step()
        await model.check()
