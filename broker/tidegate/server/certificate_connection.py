"""A connection of a TLS listener: the certificate of its client says who it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tidegate.audit import ocsf
from tidegate.security.identity import CertificateIdentities, Identity, certificate_subject
from tidegate.server.acceptor import Acceptor
from tidegate.server.audited_requests import origin_of
from tidegate.server.connection import Connection


class CertificateConnection(Connection):
    """A client without a certificate is anonymous; one whose subject no rule matches is disconnected."""

    identified_on_accept = False

    def __init__(self, server: Acceptor[Connection], listener: str, identities: CertificateIdentities) -> None:
        super().__init__(server, listener)
        self._identities = identities

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.closed:
            return
        subject = certificate_subject(transport)
        if subject is not None:
            self._identify(subject)
        if not (self._ended or self.server.admit_to_org(self)):
            self.abort()

    def _identify(self, subject: str) -> None:
        identity = self._identities.identity(subject)
        self._audit(identity, subject)
        if identity is None:
            self.server.limited_log.warn(
                "certificate_not_mapped",
                listener=self.client.listener,
                subject=subject,
                do="add a rule to TIDEGATE_SSL_PRINCIPAL_MAPPING_RULES, or correct TIDEGATE_SSL_ORG_MAPPING_RULES",
            )
            self.abort()
        else:
            self.client.principal, self.client.org = identity.principal, identity.org

    def _audit(self, identity: Identity | None, subject: str) -> None:
        trail = self.server.context.audit
        if trail is not None:
            who = identity or Identity(subject)
            origin = replace(origin_of(self.client), principal=who.principal, org=who.org)
            trail.note(ocsf.authentication(origin, "TLS", None if identity else "no rule maps the certificate"))
