"""The model finds every planted bug; the table says with which seed, and after how many steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.machine import Groups
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.network import Server
from tests.support import clock as stepped
from tests.support.machines import search
from tests.support.valkey import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

RUNS_MAX = 1_500
rows: list[tuple[str, int, int, str]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    print(f"\n{'planted bug':56} {'seed':>10} {'steps':>6}  found by")
    for name, seed, steps, found in rows:
        print(f"{name:56} {seed:10} {steps:6}  {found}")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_model_finds(mutation: Mutation, valkey: ValkeyServer) -> None:
    stepped.install()
    Groups.server = Server(valkey.port)
    Groups.steps = 0
    try:
        with mutation.planted():
            seed, error = search(Groups, RUNS_MAX, 40)
    finally:
        Groups.server.close()
        stepped.uninstall()
    assert error is not None, f"not found with seed {seed} in {Groups.steps} steps"
    assert not isinstance(error, NameError | AttributeError | TypeError), f"a fault of the model: {error!r}"
    rows.append((mutation.name, seed, Groups.steps, (f"{error}".splitlines() or [type(error).__name__])[0][:80]))
