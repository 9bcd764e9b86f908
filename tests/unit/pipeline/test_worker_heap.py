"""A worker's modules are left out of its garbage collections, once."""

from __future__ import annotations

import subprocess
import sys


def test_first_call_of_a_process_counts() -> None:
    reported = subprocess.run(
        [
            sys.executable,
            "-c",
            "import gc; from tidegate_pipeline.worker_heap import freeze_gc; none = gc.get_freeze_count(); freeze_gc();"
            "first = gc.get_freeze_count(); kept = [[] for _ in range(1000)]; freeze_gc();"
            "print(none, first > 1000, first - gc.get_freeze_count() < 100, gc.get_freeze_count() <= first)",
        ],
        capture_output=True,
        text=True,
    )

    assert (reported.stdout.split(), reported.stderr) == (["0", "True", "True", "True"], "")
