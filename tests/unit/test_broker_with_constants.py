"""Processes whose wall clock is stepped: what the chaos tests do to single brokers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.kit.cluster import SteppedProcess

_READ = """
import sys
from pathlib import Path
from bench.broker_with_constants import step_clock_by
step_clock_by(Path(sys.argv[1]))
from time import monotonic, time, time_ns
for _ in sys.stdin:
    print(time(), time_ns() / 1e9, monotonic(), flush=True)
"""


def test_stepped_clock_moves_the_wall_clock_alone(tmp_path: Path) -> None:
    clock = SteppedProcess(tmp_path / "broker")
    command = [sys.executable, "-c", _READ, clock.of_broker["BROKER_CLOCK"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step_s, expected_s in ((0, 0), (30, 30), (8 * 86_400, 691_230), (-120, 691_110)):
            clock.step(step_s)
            before = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            seconds, from_ns, monotonic = map(float, process.stdout.readline().split())
            passed = time.monotonic() - before[1] + 0.1
            assert 0 <= seconds - expected_s - before[0] + 0.1 < passed + 0.2
            assert 0 <= from_ns - expected_s - before[0] + 0.1 < passed + 0.2
            assert 0 <= monotonic - before[1] < passed
        process.stdin.close()
