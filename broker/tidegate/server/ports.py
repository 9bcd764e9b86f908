"""The ports of a broker: bound before anything else starts, opened when all the rest has."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tidegate.cluster.addresses import Endpoints, advertised_endpoints
from tidegate.cluster.listeners import listeners_of
from tidegate.errors import CannotStart
from tidegate.server.certificates import Certificates
from tidegate.server.listener import Server
from tidegate.settings import Settings


class Ports:
    """Every listener of the settings, bound; a port or a certificate that cannot be had is told at once.

    `bind` is given host, port and the variable that an error names. Raises CannotStart.
    """

    def __init__(self, settings: Settings, bind: Callable[[str, int, str], socket.socket]) -> None:
        self._listeners = listeners_of(settings)
        self.certificates = Certificates(settings) if any(one.tls for one in self._listeners) else None
        self._bound = [bind(one.host, one.port, one.setting) for one in self._listeners]
        self.numbers: list[int] = [sock.getsockname()[1] for sock in self._bound]

    def advertised(self) -> Endpoints:
        """What clients of each listener are told. Raises CannotStart."""
        return advertised_endpoints(self._listeners, self.numbers)

    async def open(self, server: Server) -> None:
        """Accept on all. Raises CannotStart."""
        for listener, port, sock in zip(self._listeners, self.numbers, self._bound, strict=True):
            try:
                if listener.tls and self.certificates is not None:
                    server.open_tls(sock.dup(), listener.name, self.certificates)
                else:
                    sock.close()
                    await server.open(listener.host, port, listener.name)
            except OSError as error:
                reported = f"cannot listen on {listener.host}:{port} ({listener.setting}): {error.strerror}"
                raise CannotStart(reported) from None

    def close(self) -> None:
        """Let go of what was bound; what was opened stays open."""
        for sock in self._bound:
            sock.close()
