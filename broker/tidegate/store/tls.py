"""TLS to Redis: trusted authorities, client certificate, and readable handshake errors."""

from __future__ import annotations

import ssl
from typing import Any, Final

from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.addresses import Topology

SPEAKS_TLS: Final = "if it speaks TLS: rediss:// instead of redis://"
NO_TLS: Final = "if it speaks no TLS: redis:// instead of rediss://"
NO_HANDSHAKE: Final = f"no TLS handshake in time ({NO_TLS})"


def tls_files(settings: Settings, topology: Topology) -> dict[str, Any]:
    """redis-py's `ssl_…` parameters: from the settings, else from the address."""
    named = dict(topology.tls_files)
    return {
        "ssl_ca_certs": settings.redis_ca_file or named.get("ssl_ca_certs"),
        "ssl_certfile": settings.redis_client_cert_file or named.get("ssl_certfile"),
        "ssl_keyfile": settings.redis_client_key_file or named.get("ssl_keyfile"),
        "ssl_check_hostname": named.get("ssl_check_hostname", "true").lower() != "false",
    }


def tls_context(settings: Settings, topology: Topology) -> ssl.SSLContext | None:
    """The context of every connection to Redis; None without TLS. Raises CannotStart.

    Without a CA file the system's authorities are trusted.
    """
    if not topology.tls:
        return None
    files = tls_files(settings, topology)
    ca_file, certificate, key = files["ssl_ca_certs"], files["ssl_certfile"], files["ssl_keyfile"]
    if key and not certificate:
        raise CannotStart("TIDEGATE_REDIS_CLIENT_KEY_FILE is set, TIDEGATE_REDIS_CLIENT_CERT_FILE is not")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise _unusable("redis_ca_file", ca_file, error) from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            raise _unusable("redis_client_cert_file", ", ".join(filter(None, (certificate, key))), error) from None
    context.check_hostname = files["ssl_check_hostname"]
    return context


def _unusable(setting: str, files: str, error: OSError) -> CannotStart:
    reason = f"not a PEM file that fits ({error.reason})" if isinstance(error, ssl.SSLError) else error.strerror
    return CannotStart(f"TIDEGATE_{setting.upper()} ({files}) cannot be used: {reason}")


def reason(error: BaseException) -> str:
    """Why a connection failed, for humans."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (TIDEGATE_REDIS_CA_FILE)"
    if isinstance(error, ssl.SSLError):
        text = error.reason or str(error)
        if "CERTIFICATE_REQUIRED" in text:
            return "it asks for a client certificate (TIDEGATE_REDIS_CLIENT_CERT_FILE)"
        return f"no TLS handshake: {text} ({NO_TLS})"
    return getattr(error, "strerror", None) or str(error) or "no answer"
