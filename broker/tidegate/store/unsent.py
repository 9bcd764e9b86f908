"""The end of a connection to Redis that takes back what was not delivered."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

_DISCARD: Final = struct.pack("ii", 1, 0)


def abort_unsent(transport: asyncio.WriteTransport) -> None:
    """Abort, and discard what the peer has not acknowledged (SO_LINGER of 0 s).

    Otherwise the kernel goes on sending after the close. Behind a network that recovers later, Redis would then execute
    commands whose outcome was reported as unknown, after newer ones of other brokers.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
    transport.abort()
