"""One target's half of a conversation: its connections, and its replies to each actor."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.conformance.differential.messages import API_KEYS, VERSIONS
from tests.conformance.differential.normalise import Names
from tests.conformance.differential.observed import CLOSED
from tests.conformance.differential.targets import Target
from tests.kit.wire import RawClient

_GROUP_APIS: Final = {API_KEYS[api] for api in VERSIONS}
_WITHOUT_EFFECT: Final = ("inconsistent_group_protocol", "invalid_session_timeout", "unknown_server_error")
_ANSWER_S: Final = 600.0


@dataclass(slots=True)
class ReportedBroker:
    """The replies of a target to one actor."""

    member_id: str = ""
    generation: int = -1
    leader: str = ""
    protocol: str | None = None
    listed: tuple[str, ...] = ()
    is_promised: bool = False
    """An id was handed out and has not come back."""


class Side:
    """One target's half of a conversation."""

    def __init__(self, target: Target, group_id: str) -> None:
        self.target, self.group_id, self.names = target, group_id, Names(group_id)
        self.reported: dict[str, ReportedBroker] = {}
        self._clients: dict[tuple[str, str], RawClient] = {}
        self._opened: list[RawClient] = []
        self._busy: set[RawClient] = set()

    def of(self, actor: str) -> ReportedBroker:
        """The replies of this target to `actor` so far."""
        return self.reported.setdefault(actor, ReportedBroker())

    async def ask(self, actor: str, place: int, api: str, request: Any, client_id: str) -> Any:
        """Ask one broker; for ListGroups all of them, and merge, as clients do. What others talk of is left out."""
        addresses = self.target.addresses
        if api != "ListGroups":
            response = await self._ask(actor, addresses[place % len(addresses)], request, client_id)
            if api != "ApiVersions":
                return response
            kept = [one for one in response.api_keys if one.api_key in _GROUP_APIS]
            return dataclasses.replace(response, api_keys=tuple(kept))
        responses = [await self._ask(actor, address, request, client_id) for address in addresses]
        merged = {one.group_id: one for response in responses for one in response.groups}
        mine = tuple(one for group_id, one in merged.items() if self.group_id in group_id)
        return dataclasses.replace(responses[0], groups=mine)

    async def _ask(self, actor: str, address: str, request: Any, client_id: str) -> Any:
        """Send on the actor's connection, or on a new one while that has an answer outstanding."""
        client = self._clients.get((actor, address))
        try:
            if client is None or client in self._busy:
                client = self._clients[actor, address] = await RawClient.connect(address, client_id)
                self._opened.append(client)
            self._busy.add(client)
            response = await client.ask(request, _ANSWER_S)
            self._busy.discard(client)
            return response
        except (asyncio.IncompleteReadError, ConnectionError):
            self._clients.pop((actor, address), None)
            return CLOSED

    def learn(self, actor: str, api: str, response: Any) -> None:
        """Remember ids, generation and leader from an answer."""
        if api != "JoinGroup" or response is CLOSED:
            return
        self.names.learn(response.member_id, actor)
        reported = self.of(actor)
        if response.error_code.name not in _WITHOUT_EFFECT:
            reported.is_promised = response.error_code.name == "member_id_required"
        if response.error_code.name in ("none", "member_id_required"):
            reported.member_id = response.member_id
        if response.error_code.name == "none":
            reported.generation, reported.leader = response.generation_id, response.leader
            reported.protocol = response.protocol_name
            reported.listed = tuple(member.member_id for member in response.members)

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(client.close() for client in self._opened))


def resolve(value: Any, side: Side) -> Any:
    """The value as this side has it: whatever is callable, at any depth, is asked with the side."""
    if callable(value):
        return resolve(value(side), side)
    if isinstance(value, Mapping):
        return {name: resolve(own, side) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(resolve(own, side) for own in value)
    return value
