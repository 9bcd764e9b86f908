"""An authority of the tests' own, a server that speaks TLS, and what either end shows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import trustme

from bench.cluster import server_binary
from tests.support.valkey import ValkeyServer, free_port


@cache
def tls_server_binary() -> str | None:
    """A Valkey or Redis that was built with TLS: the tests' own server, else one on the PATH (Debian's is); or None."""
    for binary in (server_binary(), shutil.which("valkey-server"), shutil.which("redis-server")):
        if binary is not None:
            asked = [binary, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none", "--tls-key-file", "/none"]
            reported_text = subprocess.run(asked, capture_output=True, timeout=60, check=False).stdout
            if b"Failed to configure TLS" in reported_text:  # one without TLS does not come so far
                return binary
    return None


class Authority:
    """A CA and the files that it made."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.ca_file = str(directory / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca_file)

    def issue(self, name: str, *hosts: str) -> tuple[str, str]:
        """Certificate and key, as files."""
        issued = self._ca.issue_cert(*(hosts or (name,)))
        certificate, key = str(self._directory / f"{name}.pem"), str(self._directory / f"{name}.key")
        for number, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(certificate, append=bool(number))
        issued.private_key_pem.write_to_path(key)
        return certificate, key


class TlsServer(ValkeyServer):
    """A server with a plain port, which the tests use, and a TLS port beside it."""

    def __init__(
        self,
        authority: Authority,
        *hosts: str,
        clients_show_certificates: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        certificate, key = authority.issue("server", *(hosts or ("127.0.0.1", "localhost")))
        self.tls_port = free_port()
        super().__init__(
            [
                "--tls-port", str(self.tls_port), "--tls-cert-file", certificate, "--tls-key-file", key,
                "--tls-ca-cert-file", authority.ca_file,
                "--tls-auth-clients", "yes" if clients_show_certificates else "no", *extra,
            ],
            binary=tls_server_binary(),
        )  # fmt: skip

    @property
    def tls_url(self) -> str:
        """Its TLS port as `redis_url` takes it."""
        return f"rediss://127.0.0.1:{self.tls_port}/0"
