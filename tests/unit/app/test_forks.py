"""Forked children end with their exit code, die with their parent, and answer signals as a process of its own does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

PARENT = """
import os, signal, sys, time
from tidegate.startup import CannotStart
from tidegate.forks import Forks

def refused():
    raise CannotStart("no such place")

def broken():
    raise ValueError("a bug")

def stopped():
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(7))
    while True:
        time.sleep(1)

def all_ended(forks, count):
    ended = {}
    while len(ended) < count:
        ended |= forks.wait().ended
    return ended

with Forks() as forks:
"""


def parent(body: str) -> subprocess.Popen[str]:
    """A process that forks; `body` is what it does."""
    code = PARENT + "".join(f"    {line}\n" for line in body.splitlines())
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_exit_codes_of_children() -> None:
    process = parent(
        "pids = [forks.start(run) for run in (lambda: None, refused, broken, stopped)]\n"
        "forks.signal(pids[3], signal.SIGKILL)\n"
        "ended = all_ended(forks, 4)\n"
        "print(*(ended[pid] for pid in pids))\n"
        "forks.signal(pids[0], signal.SIGKILL)  # has ended: nobody is signalled"
    )
    out, err = process.communicate(timeout=60)

    assert (out, process.returncode) == ("0 2 1 -9\n", 0)
    assert "tidegate: no such place\n" in err
    assert "ValueError: a bug" in err


def test_signals_reach_the_parent_and_its_file_is_watched() -> None:
    process = parent(
        "pid = forks.start(stopped)\n"
        "print('up', flush=True)\n"
        "events = forks.wait()\n"
        "print(*events.signals, events.ended, flush=True)\n"
        "while not forks.wait(fileno=0).readable: pass\n"
        "print(os.read(0, 10), forks.wait(timeout_s=0.01).readable, flush=True)\n"
        "os.kill(pid, signal.SIGTERM)\n"
        "print(*all_ended(forks, 1).values())"
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == f"{int(signal.SIGTERM)} {{}}\n"
    process.stdin.write("hello")
    process.stdin.flush()
    assert process.stdout.readline() == "b'hello' False\n"
    assert process.stderr is not None
    with process:
        out, err = process.stdout.read(), process.stderr.read()  # communicate() would lose what readline() read ahead

    assert process.returncode == 0
    assert (out, err) == ("7\n", "") or out == "-15\n"  # before or after the child had set its handler


def test_children_die_with_a_killed_parent() -> None:
    if sys.platform != "linux":
        return
    process = parent("print(forks.start(stopped), flush=True)\nforks.wait()")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)

    def is_gone() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{child}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"  # nobody has reaped it yet

    until(is_gone)
