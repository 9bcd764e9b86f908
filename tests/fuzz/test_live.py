"""A short run over a live broker; `python -m tests.fuzz` makes longer ones. TIDEGATE_SEED repeats one."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.hostile import CALLBACK_MS_MAX
from tests.fuzz.live import ANSWERED_MIN, LOADED_S, Findings, fuzz
from tests.fuzz.requests import frame
from tidegate.apis.registry import load_all

SECONDS = float(os.environ.get("TIDEGATE_FUZZ_S", "20"))


@pytest.mark.timeout(int(SECONDS + LOADED_S) + 300)
async def test_fuzz_live_broker_answers_or_closes_and_other_connections_are_served() -> None:
    seed = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    findings = await fuzz(SECONDS, seed)
    print(f"TIDEGATE_SEED={seed}", *findings.lines(), sep="\n")

    assert findings.failures() == []
    assert findings.executions["answered"] > ANSWERED_MIN
    assert findings.neighbour["asked"] > 100


def test_fuzz_long_callback_is_a_finding() -> None:
    findings = Findings(neighbour={"p99_ms": 1.0, "max_ms": 1.0}, longest_ms=CALLBACK_MS_MAX - 1)
    assert findings.failures() == []
    findings.longest_ms, findings.longest = CALLBACK_MS_MAX, "describe_groups"
    assert findings.failures() == ["a callback of the event loop took 150 ms: describe_groups"]


@pytest.mark.parametrize("api_key", sorted(load_all()))
def test_frame_every_version_is_made_from_its_schema(api_key: int) -> None:
    api = load_all()[api_key]
    made = {version: frame(api_key, version, random.Random(7))[0] for version in range(api.first, api.last + 1)}

    for version, whole in made.items():
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4
        assert whole[4:8] == api_key.to_bytes(2, "big") + version.to_bytes(2, "big")
