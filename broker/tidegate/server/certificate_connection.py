"""A connection of a TLS listener: the certificate of its client says who it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tidegate.audit import ocsf
from tidegate.security.identity import PrincipalRules, certificate_subject
from tidegate.server.acceptor import Acceptor
from tidegate.server.audited_requests import origin_of
from tidegate.server.connection import Connection


class CertificateConnection(Connection):
    """A client without a certificate is anonymous; one whose subject no rule matches is disconnected."""

    def __init__(self, server: Acceptor[Connection], listener: str, principals: PrincipalRules) -> None:
        super().__init__(server, listener)
        self._principals = principals

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        subject = certificate_subject(transport)
        if subject is None:
            return
        principal = self._principals.principal(subject)
        self._audit(principal, subject)
        if principal is None:
            self.server.limited_log.warn(
                "certificate_not_mapped",
                listener=self.client.listener,
                subject=subject,
                do="add a rule to TIDEGATE_SSL_PRINCIPAL_MAPPING_RULES",
            )
            self.abort()
        else:
            self.client.principal = principal

    def _audit(self, principal: str | None, subject: str) -> None:
        trail = self.server.context.audit
        if trail is not None:
            origin = replace(origin_of(self.client), principal=principal or subject)
            trail.note(ocsf.authentication(origin, "TLS", None if principal else "no rule maps the certificate"))
