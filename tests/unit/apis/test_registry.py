"""The table of served APIs."""

from __future__ import annotations

import pytest

from tidegate.apis import registry


def test_load_all_lists_the_modules_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = registry.load_all()
    listed: list[str] = []
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda paths: listed.extend(paths) or [])

    assert registry.load_all() is loaded
    assert not listed
