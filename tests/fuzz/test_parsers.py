"""A second of mutations for each parser; `python -m tests.fuzz.parsers` runs longer, guided by atheris."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cluster import REPOSITORY
from tests.fuzz.parsers import CORPUS, TARGETS, run_mutations, seeds

SECONDS = float(os.environ.get("TIDEGATE_FUZZ_S", "20")) / 20


@pytest.mark.parametrize("name", TARGETS)
def test_parser_mutated_input_raises_only_documented_errors(name: str) -> None:
    seed = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"TIDEGATE_SEED={seed}")

    assert run_mutations(name, SECONDS, seed) > 0


@pytest.mark.parametrize("name", TARGETS)
def test_parser_seeds_are_taken(name: str) -> None:
    for data in seeds(name, random.Random(3)):
        TARGETS[name](data)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name[:8]}")
def test_parser_corpus_raises_only_documented_errors(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_parser_corpus_is_of_every_target() -> None:
    assert {path.parent.name for path in CORPUS.glob("*/*")} == set(TARGETS)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed (pip install atheris)"
)
@pytest.mark.timeout(300)
def test_parser_guided_by_coverage_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.parsers", "requests", "--seconds", f"{SECONDS * 10:.0f}"]
    run = subprocess.run(
        [*command, "--corpus", str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr[-3_000:]
