"""The ports of a broker: bound before any other component starts, opened after all others."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tidegate.cluster.addresses import Endpoints, advertised_endpoints
from tidegate.cluster.listeners import listeners_of
from tidegate.server.certificates import Certificates
from tidegate.server.listener import Server
from tidegate.settings import Settings
from tidegate.startup import CannotStart


class Ports:
    """Every listener of the settings, bound; errors of ports and certificates are reported before the start.

    `bind` takes host, port and the setting that an error names. Raises CannotStart.
    """

    def __init__(self, settings: Settings, bind: Callable[[str, int, str], socket.socket]) -> None:
        self._listeners = listeners_of(settings)
        self.certificates = Certificates(settings) if any(one.tls for one in self._listeners) else None
        self._bound = [bind(one.host, one.port, one.setting) for one in self._listeners]
        self.numbers: list[int] = [sock.getsockname()[1] for sock in self._bound]

    def advertised(self) -> Endpoints:
        """The advertised address of each listener. Raises CannotStart."""
        return advertised_endpoints(self._listeners, self.numbers)

    async def open(self, server: Server) -> None:
        """Accept on all listeners. Raises CannotStart."""
        for listener, port, sock in zip(self._listeners, self.numbers, self._bound, strict=True):
            try:
                if listener.tls and self.certificates is not None:
                    server.open_tls(sock.dup(), listener.name, self.certificates, sasl=listener.sasl)
                else:
                    sock.close()
                    await server.open(listener.host, port, listener.name, sasl=listener.sasl)
            except OSError as error:
                reported = f"cannot listen on {listener.host}:{port} ({listener.setting}): {error.strerror}"
                raise CannotStart(reported) from None

    def close(self) -> None:
        """Close bound sockets that were not opened; open listeners are not affected."""
        for sock in self._bound:
            sock.close()
