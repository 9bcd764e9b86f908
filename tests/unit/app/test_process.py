"""Ports are told clearly when they cannot be had."""

from __future__ import annotations

import socket

import pytest

from tidegate.errors import CannotStart
from tidegate.process import bind


def test_port_0_takes_a_free_one() -> None:
    with bind("127.0.0.1", 0, "TIDEGATE_PORT") as sock:
        assert sock.getsockname()[1] > 0


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(CannotStart, match=rf"port {port} on 127\.0\.0\.1 is in use \(TIDEGATE_PORT"):
            bind("127.0.0.1", port, "TIDEGATE_PORT")


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(CannotStart, match=r"cannot listen on 192\.0\.2\.1:0 \(TIDEGATE_PORT\)"):
        bind("192.0.2.1", 0, "TIDEGATE_PORT")
