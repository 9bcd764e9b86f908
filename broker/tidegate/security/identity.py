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


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated client.

    `expires_at`: the end of its credential in seconds since 1970, including the allowed clock skew; None forever.
    """

    principal: str
    org: str = DEFAULT_ORG
    expires_at: float | None = None


_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class PrincipalRules:
    """`ssl.principal.mapping.rules` (KIP-371): the first rule that matches a distinguished name gives the user's name.

    A rule is DEFAULT (the whole name) or `RULE:pattern/replacement/[LU]`; `$1` is the first group of the pattern.
    Raises CannotStart.
    """

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str] | None, str, str]] = []
        position = 0
        while position < len(text):
            if text[position] in ", \t\n":
                position += 1
                continue
            match = _RULE.match(text, position)
            if match is None:
                raise CannotStart(f"TIDEGATE_SSL_PRINCIPAL_MAPPING_RULES: {text[position:]!r} is not a rule")
            position = match.end()
            if match[1]:
                self._rules.append((None, "", ""))
                continue
            try:
                pattern = re.compile(match[2])
            except re.error as error:
                raise CannotStart(f"TIDEGATE_SSL_PRINCIPAL_MAPPING_RULES: {match[2]!r}: {error}") from None
            self._rules.append((pattern, re.sub(r"\$(\d)", r"\\g<\1>", match[3]), match[4]))

    def principal(self, distinguished_name: str) -> str | None:
        """The principal of a certificate's subject; None if no rule matches."""
        for pattern, replacement, case in self._rules or [(None, "", "")]:
            if pattern is None:
                return f"User:{distinguished_name}"
            match = pattern.fullmatch(distinguished_name)
            if match is not None:
                name = match.expand(replacement)
                return "User:" + {"L": name.lower(), "U": name.upper()}.get(case, name)
        return None


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
