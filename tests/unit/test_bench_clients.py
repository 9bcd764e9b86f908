"""Programs of client libraries, as runs beside each other prepare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import clients


def test_java_program_is_compiled_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run starts it while another prepares it."""
    monkeypatch.setenv("TIDEGATE_JARS", str(tmp_path))
    monkeypatch.setattr(clients, "_program", lambda name, *_: name)
    compiled: list[Path] = []

    def compile_(command: Sequence[str], where: Path) -> None:
        target = Path(command[command.index("-d") + 1])
        target.mkdir(parents=True, exist_ok=True)
        (target / "Chain.class").write_text("")
        compiled.append(target)

    monkeypatch.setattr(clients, "_run", compile_)
    first, again, other = (clients._java("Chain", jars) for jars in ("a.jar", "a.jar", "b.jar"))

    places = [Path(command[command.index("-cp") + 1].split(":")[0]) for command in (first, again, other)]
    assert places[0] == places[1] != places[2]
    assert all((place / "Chain.class").exists() for place in places)
    assert len(compiled) == 2 and not set(compiled) & set(places)
