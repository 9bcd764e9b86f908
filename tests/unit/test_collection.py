"""What pytest does beside the tests stays cheap."""

from __future__ import annotations

import gc


def test_collection_is_outside_garbage_collection() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
