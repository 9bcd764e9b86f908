"""Chaos tests print their seed, so that a failure can be run again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """A source of chance; TIDEGATE_SEED chooses it, else it is drawn and printed."""
    seed = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"{request.node.name}: TIDEGATE_SEED={seed}")
    yield random.Random(seed)
