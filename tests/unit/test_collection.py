"""What happens beside the tests stays cheap."""

from __future__ import annotations

import gc

import pytest
import structlog

from tests.support.order_of_tests import spread


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


def test_spread_places_files_of_either_kind_evenly() -> None:
    computing = [f"unit-{file}/{case}" for file in range(6) for case in range(2)]
    waiting = [f"clients-{file}/{case}" for file in range(3) for case in range(2)]

    order = spread([*waiting, *computing], lambda item: item.partition("/")[0], lambda item: item.startswith("clients"))

    assert sorted(order) == sorted([*waiting, *computing])
    assert [order.index(f"clients-{file}/0") for file in range(3)] == [0, 6, 12]
    assert [item for item in order if item in computing] == computing


def test_spread_leaves_one_kind_as_it_is() -> None:
    assert spread(["a/1", "a/2", "b/1"], lambda item: item[0], lambda item: True) == ["a/1", "a/2", "b/1"]
    assert spread([], lambda item: item, lambda item: False) == []
