"""What a share consumer proves its user with: PLAIN, SCRAM or OAUTHBEARER (RFC 4616, 5802, 7628)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Token = Callable[[], str | Awaitable[str]]
_SCRAM: Final = "SCRAM-"


@dataclass(frozen=True, slots=True)
class Sasl:
    """Name and password, or for OAUTHBEARER what gives a token, called at each authentication. Raises ValueError.

    Give `tls` too: PLAIN and OAUTHBEARER send the secret itself.
    """

    mechanism: Mechanism = "SCRAM-SHA-512"
    username: str = ""
    password: str = field(default="", repr=False)
    token: Token | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mechanism == "OAUTHBEARER":
            if self.token is None:
                raise ValueError("OAUTHBEARER needs `token`, which gives a token at each authentication")
        elif not self.username or not self.password:
            raise ValueError(f"{self.mechanism} needs `username` and `password`")

    async def messages(self) -> AsyncGenerator[bytes, bytes]:
        """The client's messages; each is sent the server's answer. Raises ValueError for a server that does not fit."""
        if self.mechanism == "OAUTHBEARER":
            assert self.token is not None
            given = self.token()
            token = await given if inspect.isawaitable(given) else given
            refused = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
            if refused:
                yield b"\x01"
        elif self.mechanism == "PLAIN":
            yield f"\0{self.username}\0{self.password}".encode()
        else:
            from scramp import ScramClient, ScramException  # loads certificates' parsers: only those who need it wait

            try:
                client = ScramClient([self.mechanism], self.username, self.password)
                client.set_server_first((yield client.get_client_first().encode()).decode())
                client.set_server_final((yield client.get_client_final().encode()).decode())
            except ScramException as error:
                raise ValueError(f"the broker does not know the password: {error}") from None
