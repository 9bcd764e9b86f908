"""The SASL mechanisms that a broker offers. Imported only where a listener uses SASL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from tidegate.security.oauth import TokenValidator
from tidegate.security.sasl import OAuthBearer, Plain, Scram
from tidegate.security.session import MakeAuthentication
from tidegate.security.users import Users
from tidegate.settings import Settings


class Mechanisms(Mapping[str, MakeAuthentication]):
    """Name of each offered mechanism, in the order of the setting -> what begins an exchange. Raises CannotStart."""

    def __init__(self, settings: Settings, users: Users) -> None:
        self._offered: dict[str, MakeAuthentication] = {}
        self._validator: TokenValidator | None = None
        for name in dict.fromkeys(settings.sasl_enabled_mechanisms.split(",")):
            if name == "PLAIN":
                self._offered[name] = partial(Plain, users)
            elif name == "OAUTHBEARER":
                self._validator = TokenValidator(settings)
                self._offered[name] = partial(OAuthBearer, self._validator)
            else:
                self._offered[name] = partial(Scram, name, users)

    def __getitem__(self, name: str) -> MakeAuthentication:
        return self._offered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._offered)

    def __len__(self) -> int:
        return len(self._offered)

    async def close(self) -> None:
        """Cancel what is under way."""
        if self._validator is not None:
            await self._validator.close()
