"""The commands' connection to Redis."""

from __future__ import annotations

import socket
import threading

import pytest

from tidegate.admin.failures import CommandFailed
from tidegate.admin.places import RedisServer
from tidegate.admin.redis_access import connected
from tidegate.settings import Settings


def test_a_server_that_hangs_up_is_told_at_once_and_not_tried_again() -> None:
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


def test_a_cluster_that_is_away_is_told_in_one_line() -> None:
    place = RedisServer(Settings(redis_url="redis+cluster://127.0.0.1:1"))

    with pytest.raises(CommandFailed, match=r"^Redis at redis\+cluster://127.0.0.1:1: .*refused"), connected(place):
        pass
