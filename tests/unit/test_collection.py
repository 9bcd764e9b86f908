"""What happens beside the tests stays cheap."""

from __future__ import annotations

import gc

import pytest
import structlog


def test_collection_is_outside_garbage_collection() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000


def test_logged_exception_lists_no_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["unrelated"] * 1_000
    try:
        raise ValueError(f"{len(large)} too many")
    except ValueError:
        structlog.get_logger().exception("failed")

    assert "ValueError: 1000 too many" in (out := capsys.readouterr().out)
    assert "unrelated" not in out.replace('"unrelated"', "")
