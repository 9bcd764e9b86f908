"""Errors of authentication and of its administration."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class UnsupportedSaslMechanism(KafkaError):
    """This listener does not offer the mechanism."""

    code = ErrorCode.unsupported_sasl_mechanism


class IllegalSaslState(KafkaError):
    """The request does not belong here: no SASL on this listener, or no handshake before it."""

    code = ErrorCode.illegal_sasl_state


class SaslAuthenticationFailed(KafkaError):
    """Wrong credentials.

    The message reaches the client and must not show which part was wrong.
    """

    code = ErrorCode.sasl_authentication_failed


class ResourceNotFound(KafkaError):
    """No such user or credential."""

    code = ErrorCode.resource_not_found


class DuplicateResource(KafkaError):
    """A request names the same user more than once."""

    code = ErrorCode.duplicate_resource


class UnacceptableCredential(KafkaError):
    """A credential that is too weak or malformed (KIP-554)."""

    code = ErrorCode.unacceptable_credential


class SecurityDisabled(KafkaError):
    """Access control lists are not enabled."""

    code = ErrorCode.security_disabled
