"""Starts brokers for `tidegate dev` from one warm import: `python -m tidegate.fork_server`.

It reads one JSON object per line from stdin and answers on stdout, both by the broker's name:

    {"start": name, "environment": {...}, "log": path}     ->  {"name": name, "pid": ...}
    {"signal": 15, "name": name}
                                                           <-  {"name": name, "code": ...} when it has ended

Exit codes are negative for signals. Its parent closes stdin: the brokers are killed, and it ends.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate import startup

if TYPE_CHECKING:
    from tidegate.forks import Forks

_STDIN: Final = 0
_CHUNK_BYTES: Final = 1 << 16


class ForkServer:
    """The brokers by name, until stdin ends; `run` is called in each child with the request that started it."""

    def __init__(self, forks: Forks, run: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._forks = forks
        self._run = run or become_broker
        self._pids: dict[str, int] = {}
        self._received = b""

    def serve(self) -> None:
        """Answer requests until the parent closes stdin, then kill the brokers."""
        while True:
            events = self._forks.wait(fileno=_STDIN)
            for name, pid in [(name, pid) for name, pid in self._pids.items() if pid in events.ended]:
                del self._pids[name]
                _report(name=name, code=events.ended[pid])
            if events.readable:
                chunk = os.read(_STDIN, _CHUNK_BYTES)
                if not chunk:
                    break
                *lines, self._received = (self._received + chunk).split(b"\n")
                for line in lines:
                    self._do(json.loads(line))
        for pid in self._pids.values():
            self._forks.signal(pid, signal.SIGKILL)

    def _do(self, request: dict[str, Any]) -> None:
        if "signal" in request:
            pid = self._pids.get(request["name"])
            if pid is not None:
                self._forks.signal(pid, request["signal"])
            return
        name = request["start"]
        self._pids[name] = self._forks.start(lambda: self._run(request))
        _report(name=name, pid=self._pids[name])


def _report(**values: object) -> None:
    print(json.dumps(values), flush=True)  # noqa: T201 - the answer


def become_broker(request: dict[str, Any]) -> None:
    """Become a broker with the environment of a request, whose output goes to its log."""
    from tidegate import serve

    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fileno, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fileno, target)
    os.close(null)
    os.close(out)
    os.environ.clear()
    os.environ.update(request["environment"])
    serve.run(serve.ServeOptions())


def main(run: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Import what a broker needs, its admin HTTP too, and serve."""
    startup.prepare()
    from tidegate import serve
    from tidegate.forks import Forks

    serve.warm_up()
    with Forks() as forks:
        ForkServer(forks, run).serve()


if __name__ == "__main__":
    main()
