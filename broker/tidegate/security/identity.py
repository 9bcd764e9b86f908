"""Who a client is: the principal and the organisation it acts in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.startup import CannotStart

ANONYMOUS: Final = "User:ANONYMOUS"
DEFAULT_ORG: Final = "default"
ORG_PATTERN: Final = re.compile(r"[a-z0-9-]{1,63}")
NAME_LENGTH_MAX: Final = 1_024
"""Characters of a user's name, and of each name in an access rule."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client.

    `expires_at`: the end of its credential in seconds since 1970, including the allowed clock skew; None forever.
    """

    principal: str
    org: str = DEFAULT_ORG
    expires_at: float | None = None


_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class MappingRules:
    """`ssl.principal.mapping.rules` (KIP-371), and the same for organisations: the first rule that matches counts.

    A rule is DEFAULT (the whole name) or `RULE:pattern/replacement/[LU]`; `$1` is the first group of the pattern.
    Raises CannotStart, which names `setting`.
    """

    def __init__(self, text: str, setting: str) -> None:
        self._rules: list[tuple[re.Pattern[str] | None, str, str]] = []
        position = 0
        while position < len(text):
            if text[position] in ", \t\n":
                position += 1
                continue
            match = _RULE.match(text, position)
            if match is None:
                raise CannotStart(f"{setting}: {text[position:]!r} is not a rule")
            position = match.end()
            if match[1]:
                self._rules.append((None, "", ""))
                continue
            try:
                pattern = re.compile(match[2])
            except re.error as error:
                raise CannotStart(f"{setting}: {match[2]!r}: {error}") from None
            self._rules.append((pattern, re.sub(r"\$(\d)", r"\\g<\1>", match[3]), match[4]))

    def map(self, distinguished_name: str) -> str | None:
        """What a certificate's subject is mapped to; None if no rule matches."""
        for pattern, replacement, case in self._rules:
            if pattern is None:
                return distinguished_name
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                name = match.expand(replacement)
                return {"L": name.lower(), "U": name.upper()}.get(case, name)
        return None


class CertificateIdentities:
    """Who the owners of certificates are, by two settings. Raises CannotStart."""

    def __init__(self, principal_rules: str, org_rules: str) -> None:
        self._principals = MappingRules(principal_rules or "DEFAULT", "TIDEGATE_SSL_PRINCIPAL_MAPPING_RULES")
        self._orgs = MappingRules(org_rules, "TIDEGATE_SSL_ORG_MAPPING_RULES")

    def identity(self, distinguished_name: str) -> Identity | None:
        """The principal and its organisation, `default` unless a rule gives one.

        None if no rule gives a principal, or what a rule gives is no organisation's name.
        """
        name, org = self._principals.map(distinguished_name), self._orgs.map(distinguished_name) or DEFAULT_ORG
        return None if name is None or ORG_PATTERN.fullmatch(org) is None else Identity(f"User:{name}", org)


_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_SPECIAL: Final = re.compile(r'([,+"\\<>;])|^([ #])|( )$')


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """The subject of `SSLObject.getpeercert()` as RFC 2253 writes it, as Java does: the last element first."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_SPECIAL.sub(_escaped, value)}" for kind, value in element)
        for element in reversed(subject)
    )


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def certificate_subject(transport: Any) -> str | None:
    """The distinguished name of a client's certificate; None without one."""
    certificate = transport.get_extra_info("peercert")
    return distinguished_name(certificate["subject"]) if certificate else None
