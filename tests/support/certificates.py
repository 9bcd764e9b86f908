"""Certificates of an authority of the test's own, as files."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path

import trustme


class Authority:
    """One authority and the files that brokers and clients are given."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str, not_after: datetime | None = None) -> Path:
        """A certificate for hosts (or of a client of this name), its key before it, in one file that is replaced."""
        issued = self._ca.issue_cert(*(hosts or (f"{name}@test",)), common_name=name, not_after=not_after)
        path = self._directory / f"{name}.pem"
        whole = self._directory / f"{name}.new"
        whole.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        whole.replace(path)
        return path

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """What a client that trusts this authority connects with."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context
