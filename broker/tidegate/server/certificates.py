"""The certificate of the TLS listeners: loaded at the start and reloaded when its files change."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Final

import structlog

from tidegate.settings import Settings
from tidegate.startup import CannotStart

logger = structlog.get_logger()

_CHECK_INTERVAL_S: Final = 5.0


class Certificates:
    """Holds the `SSLContext` of new handshakes in `context`. A reload replaces the context. Raises CannotStart."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._observed = self._versions()
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            raise CannotStart(_reported(settings, error)) from None

    async def watch(self) -> None:
        """Poll the files every few seconds and reload them after a change; never returns."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.reload()

    def reload(self) -> None:
        """Reload changed files; if loading fails, keep the current certificate until the next change.

        Open connections keep the certificate of their handshake.
        """
        versions = self._versions()
        if versions == self._observed:
            return
        self._observed = versions
        try:
            self.context = self._load()
        except (OSError, ssl.SSLError) as error:
            logger.error("certificate_not_loaded", reason=_reported(self._settings, error))
        else:
            logger.info("certificate_loaded", file=self._settings.ssl_certificate_file)

    def _files(self) -> list[str]:
        settings = self._settings
        files = (settings.ssl_certificate_file, settings.ssl_key_file, settings.ssl_client_ca_file)
        return [file for file in files if file]

    def _versions(self) -> list[tuple[int, int, int] | None]:
        """The stat fields that identify a version of each file; symlinks are followed, as Kubernetes swaps them."""
        return [_version(file) for file in self._files()]

    def _load(self) -> ssl.SSLContext:
        """Raises OSError, ssl.SSLError."""
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Refuse an encrypted key: without a password OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(settings.ssl_certificate_file or "", settings.ssl_key_file, password="")
        if settings.ssl_client_ca_file:
            context.load_verify_locations(settings.ssl_client_ca_file)
            required = settings.ssl_client_auth == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context


def _version(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _reported(settings: Settings, error: OSError) -> str:
    files = ("SSL_CERTIFICATE_FILE", "SSL_KEY_FILE", "SSL_CLIENT_CA_FILE")
    given = (settings.ssl_certificate_file, settings.ssl_key_file, settings.ssl_client_ca_file)
    named = ", ".join(f"TIDEGATE_{name}={file}" for name, file in zip(files, given, strict=True) if file)
    missing = next((file for file in given if file and not os.path.isfile(file)), None)
    return f"the certificate cannot be used: {f'no file {missing}' if missing else error} ({named})"
