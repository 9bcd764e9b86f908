"""The commands' connection to Redis."""

from __future__ import annotations

import socket
import threading

import pytest

from tidegate.cli.client.redis_access import connected
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import RedisServer
from tidegate.settings import Settings


def test_server_that_closes_is_reported_at_once_without_a_retry() -> None:
    met: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            while True:
                try:
                    visitor, _ = listening.accept()
                except OSError:
                    return
                met.append(1)
                visitor.close()

        threading.Thread(target=hang_up, daemon=True).start()
        place = RedisServer(Settings(redis_url=f"redis://127.0.0.1:{listening.getsockname()[1]}/0"))
        with pytest.raises(CommandFailed, match="Redis at redis://127"), connected(place) as client:
            client.ping()
        listening.shutdown(socket.SHUT_RDWR)

    assert met == [1]


def test_unavailable_cluster_is_reported_in_one_line() -> None:
    place = RedisServer(Settings(redis_url="redis+cluster://127.0.0.1:1"))

    with pytest.raises(CommandFailed, match=r"^Redis at redis\+cluster://127.0.0.1:1: .*refused"), connected(place):
        pass
