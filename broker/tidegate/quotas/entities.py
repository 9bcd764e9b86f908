"""Quotas and the entities that have them, with Kafka's rules. Pure: no Redis, no sockets.

Source: ClientQuotaManager.scala (precedence), ClientQuotaControlManager.java (what is valid), ClientQuotasImage.java
(filters).
Beyond Kafka there is the entity `org`: one limit for all clients of an organisation, on top of their own; besides rates
it may limit what the organisation has.
"""

from __future__ import annotations

import enum
import ipaddress
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from tidegate.errors import InvalidRequest, UnsupportedVersion

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ORG: Final = "org"
_TYPES: Final = (USER, CLIENT_ID, IP, ORG)
CLUSTER_ORG: Final = "default"
"""The organisation whose administrators set the quotas of addresses and of organisations."""
NAME_LENGTH_MAX: Final = 1_024
"""Characters of a name that a quota is set for; a user's name has no more."""
_INTEGRAL_TOLERANCE: Final = 1e-6


class Quota(enum.StrEnum):
    """Kafka's names; those of what an organisation may have are ours."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"
    TOPICS = "topics_max"
    PARTITIONS = "partitions_max"
    GROUPS = "groups_max"
    CONNECTIONS = "connections_max"
    LOG_BYTES = "log_bytes_max"


AMOUNTS: Final = (Quota.TOPICS, Quota.PARTITIONS, Quota.GROUPS, Quota.CONNECTIONS, Quota.LOG_BYTES)
"""What an organisation may have at one time; all others are rates."""
_OF_CLIENTS: Final = (Quota.PRODUCE, Quota.FETCH, Quota.REQUEST, Quota.MUTATION)
_ALLOWED: Final = {IP: (Quota.CONNECTION,), ORG: (*_OF_CLIENTS, *AMOUNTS)}
_INT_MAX: Final = 2.0**31 - 1
_INTEGRAL_MAX: Final = {
    Quota.PRODUCE: 2.0**63,
    Quota.FETCH: 2.0**63,
    Quota.CONNECTION: _INT_MAX,
    Quota.TOPICS: _INT_MAX,
    Quota.PARTITIONS: _INT_MAX,
    Quota.GROUPS: _INT_MAX,
    Quota.CONNECTIONS: _INT_MAX,
    Quota.LOG_BYTES: 2.0**63,
}


@dataclass(frozen=True, slots=True)
class Entity:
    """Whom a quota is for: type -> name, None for the default of the type."""

    names: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, names: Mapping[str, str | None]) -> Entity:
        """The entity of these names, whatever their order."""
        return cls(tuple(sorted(names.items(), reverse=True)))

    def text(self) -> str:
        """Such as `user=alice&client-id=app`; a type without `=` is the default of that type."""
        return "&".join(kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in self.names)

    @classmethod
    def of_text(cls, text: str) -> Entity:
        """The reverse of `text`. Raises ValueError."""
        names: dict[str, str | None] = {}
        for word in text.split("&"):
            kind, equals, name = word.partition("=")
            if kind not in _TYPES or kind in names:
                raise ValueError(f"{text!r} is not an entity of quotas, such as user=alice&client-id=app")
            names[kind] = unquote(name) if equals else None
        return cls.of(names)

    def checked(self) -> Entity:
        """Itself. Raises InvalidRequest where Kafka does."""
        names = dict(self.names)
        for kind, name in self.names:
            if kind not in _TYPES:
                raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
            if name == "":
                raise InvalidRequest(f"Empty {kind} not supported")
        if not names:
            raise InvalidRequest("Invalid empty client quota entity")
        for alone in (IP, ORG):
            if alone in names and len(names) > 1:
                raise InvalidRequest(f"Invalid quota entity combination, {alone} entity should not be combined")
        if names.get(IP) is not None:
            _check_address(names[IP] or "")
        return self

    @property
    def is_of_cluster(self) -> bool:
        """Whether only the administrators of CLUSTER_ORG may set it."""
        return self.names[0][0] in (IP, ORG)

    def check_quota(self, key: str, value: float | None) -> Quota:
        """The quota of a key that is set to a value, None removes it. Raises InvalidRequest for one that this entity
        cannot have, a name above NAME_LENGTH_MAX, or a value that the quota cannot have."""
        if key not in _ALLOWED.get(self.names[0][0], _OF_CLIENTS):
            raise InvalidRequest(f"Invalid configuration key {key}")
        if value is None:
            return Quota(key)
        if any(name is not None and len(name) > NAME_LENGTH_MAX for _, name in self.names):
            raise InvalidRequest(f"A name of more than {NAME_LENGTH_MAX} characters is not supported")
        if not value > 0 or math.isinf(value):
            raise InvalidRequest(f"Quota {key} must be greater than 0")
        found = Quota(key)
        most = _INTEGRAL_MAX.get(found)
        if most is not None and value > most:
            raise InvalidRequest(f"Proposed value for {key} is too large")
        if most is not None and math.fmod(value, 1.0) > _INTEGRAL_TOLERANCE:
            raise InvalidRequest(f"{key} cannot be a fractional value.")
        return found


def _check_address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise InvalidRequest(f"{text} is not a valid IP") from None


@lru_cache(maxsize=4096)
def canonical_address(text: str) -> str:
    """An address as quotas name it: IPv4 addresses that come in over IPv6 are IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def entities_of(user: str, client_id: str) -> Iterable[tuple[Entity, Entity]]:
    """The entities that a client may have a quota from, the first wins; each with the entity that shares the bucket."""
    both = Entity(((USER, user), (CLIENT_ID, client_id)))
    yield both, both
    yield Entity(((USER, user), (CLIENT_ID, None))), both
    alone = Entity(((USER, user),))
    yield alone, alone
    yield Entity(((USER, None), (CLIENT_ID, client_id))), both
    yield Entity(((USER, None), (CLIENT_ID, None))), both
    yield Entity(((USER, None),)), alone
    client = Entity(((CLIENT_ID, client_id),))
    yield client, client
    yield Entity(((CLIENT_ID, None),)), client


class Match(enum.IntEnum):
    """Kafka's codes (`DescribeClientQuotasRequest`)."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Filter:
    """Selects entities by (type, code of a Match, name). Raises InvalidRequest, UnsupportedVersion as Kafka does."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], strict: bool) -> None:
        self._names: dict[str, str | None] = {}
        self._any: set[str] = set()
        self._strict = strict
        for kind, code, name in components:
            if not kind:
                raise InvalidRequest("Invalid empty entity type.")
            if kind in self._names or kind in self._any:
                raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
            if kind not in _TYPES:
                raise UnsupportedVersion(f"Unsupported entity type {kind}")
            self._add(kind, code, name)
        used = self._names.keys() | self._any
        if len(used) > 1 and used & {IP, ORG}:
            raise InvalidRequest("Invalid entity filter component combination: ip and org stand alone.")

    def _add(self, kind: str, code: int, name: str | None) -> None:
        if code not in list(Match):
            raise InvalidRequest(f"Unknown match type {code}")
        match = Match(code)
        if (match is Match.EXACT) != (name is not None):
            missing = "set match string to null" if name is None else "also specified a match string"
            raise InvalidRequest(f"Request specified MATCH_TYPE_{match.name}, but {missing}.")
        if match is Match.SPECIFIED:
            self._any.add(kind)
        else:
            self._names[kind] = name

    def selects(self, entity: Entity) -> bool:
        """Whether an entity is selected."""
        names = dict(entity.names)
        if self._strict and len(names) != len(self._names) + len(self._any):
            return False
        exact = all(kind in names and names[kind] == name for kind, name in self._names.items())
        return exact and self._any <= names.keys()
