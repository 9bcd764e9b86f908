"""What a broker imports as it starts: each module delays its first answer and stays in memory."""

from __future__ import annotations

import subprocess
import sys


def test_a_start_imports_nothing_that_only_some_brokers_need() -> None:
    # redis-py (sentinels, TLS) takes opentelemetry and cryptography with it
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tidegate.app; print(*sorted({name.split('.')[0] for name in sys.modules}))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(found.stdout.split())
    assert "tidegate" in loaded
    assert not loaded & {"redis", "jinja2", "opentelemetry", "cryptography", "textual", "pyarrow"}
