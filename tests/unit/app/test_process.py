"""An unavailable port is reported clearly."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tidegate.process import LoopLag, bind
from tidegate.startup import CannotStart


def test_port_0_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0, "TIDEGATE_PORT") as sock:
        assert sock.getsockname()[1] > 0


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(CannotStart, match=rf"port {port} on 127\.0\.0\.1 is in use \(TIDEGATE_PORT"):
            bind("127.0.0.1", port, "TIDEGATE_PORT")


def test_address_of_another_machine_is_named() -> None:
    with pytest.raises(CannotStart, match=r"cannot listen on 192\.0\.2\.1:0 \(TIDEGATE_PORT\)"):
        bind("192.0.2.1", 0, "TIDEGATE_PORT")


async def test_loop_lag_longest_outlives_the_window() -> None:
    lag = LoopLag()
    measuring = asyncio.create_task(lag.measure())
    await asyncio.sleep(0)

    time.sleep(0.6)  # past the next tick of 250 ms
    while lag.longest_s == 0.0:
        await asyncio.sleep(0.01)
    measuring.cancel()

    assert lag.longest_s >= 0.3
    assert lag.worst_s == lag.longest_s
    lag._lags_s[:] = [0.0]
    assert lag.worst_s == 0.0
    assert lag.longest_s >= 0.3
