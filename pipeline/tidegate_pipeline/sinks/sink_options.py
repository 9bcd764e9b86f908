"""The options of `df.write.format("tidegate")` and `writeStream.format("tidegate")`.

Names are those of Spark's Kafka connector; `kafka.…` are the producer's, where the sink's producer has them. Options
are shown by `explain`, so no password is one of them: `kafka.sasl.passwordVariable` names where it is.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import FormatOptions, given_options
from tidegate_pipeline.redis_access import read_secret

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Kafka's default of the brokers' limit, transaction.max.timeout.ms."""
DELIVERY_TIMEOUT_MS: Final = 120_000
BATCH_BYTES: Final = 256 << 10
REQUEST_BYTES: Final = 1 << 20
"""Kafka's default of max.request.size."""

_PRODUCER: Final = {
    "kafka.client.id": "client_id",
    "kafka.request.timeout.ms": "request_timeout_ms",
    "kafka.metadata.max.age.ms": "metadata_max_age_ms",
    "kafka.retry.backoff.ms": "retry_backoff_ms",
    "kafka.connections.max.idle.ms": "connections_max_idle_ms",
    "kafka.batch.size": "max_batch_size",
}
"""Kafka's name -> aiokafka's. All but the first are numbers."""
NAMES: Final = (
    "topic", "deliveryGuarantee", "transactionalIdPrefix", "includeHeaders", "kafka.bootstrap.servers", *_PRODUCER,
    "kafka.max.request.size", "kafka.compression.type", "kafka.acks", "kafka.enable.idempotence",
    "kafka.transaction.timeout.ms", "kafka.delivery.timeout.ms", "kafka.security.protocol", "kafka.sasl.mechanism",
    "kafka.sasl.username", "kafka.sasl.passwordVariable", "kafka.ssl.ca.location", "kafka.ssl.certificate.location",
    "kafka.ssl.key.location",
)  # fmt: skip
"""`includeHeaders` has no effect, as in the connector: a column `headers` is written."""
_WITH_PASSWORDS: Final = ("kafka.sasl.jaas.config", "kafka.sasl.password", "kafka.ssl.key.password")
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where records go, and how. `producer` are arguments of aiokafka's producer that may be pickled and shown."""

    bootstrap: str
    topic: str | None = None
    is_transactional: bool = True
    id_prefix: str = "tidegate-spark"
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    request_bytes_max: int = REQUEST_BYTES
    """Of a record, before compression."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str | None = None
    password_variable: str = ""
    tls_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def delivery_timeout_s(self) -> float:
        return self.delivery_timeout_ms / 1000

    def connection(self) -> dict[str, Any]:
        """Arguments of aiokafka's clients; reads the password and the certificates. Raises UsageError."""
        arguments: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            arguments |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": read_secret(self.password_variable, "of the sink's user"),
            }
        if self.protocol.endswith("SSL"):
            try:
                context = ssl.create_default_context(cafile=self.tls_files.get("kafka.ssl.ca.location"))
                if certificate := self.tls_files.get("kafka.ssl.certificate.location"):
                    context.load_cert_chain(certificate, self.tls_files.get("kafka.ssl.key.location"))
            except OSError as error:
                raise UsageError(f"kafka.ssl: a file of certificates cannot be read: {error}") from None
            arguments["ssl_context"] = context
        return arguments


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink. Raises UsageError for an unknown or wrong one, and for a password."""
    for name in _WITH_PASSWORDS:
        if name in {given.lower() for given in given_options(options)}:
            raise UsageError(
                f"{name} has a password, and Spark shows options: use kafka.sasl.username and"
                " kafka.sasl.passwordVariable, the name of an environment variable or file"
            )
    given = FormatOptions("the sink tidegate", NAMES, options)
    given.one_of("kafka.acks", "all", ("all", "-1"))
    given.one_of("kafka.enable.idempotence", "true", ("true",))
    guarantee = given.one_of("deliveryGuarantee", EXACTLY_ONCE, (EXACTLY_ONCE, AT_LEAST_ONCE))
    codec = given.one_of("kafka.compression.type", "none", _CODECS)
    protocol = given.one_of("kafka.security.protocol", "PLAINTEXT", _PROTOCOLS)
    producer: dict[str, Any] = {"compression_type": None if codec == "none" else codec, "max_batch_size": BATCH_BYTES}
    for name, argument in _PRODUCER.items():
        value = given.optional_text(name) if name == "kafka.client.id" else given.integer(name, 1)
        if value is not None:
            producer[argument] = value
    if protocol.startswith("SASL"):
        given.required_text("kafka.sasl.username")
        given.required_text("kafka.sasl.passwordVariable")
    files = [name for name in NAMES if name.startswith("kafka.ssl.")]
    return SinkOptions(
        bootstrap=given.required_text("kafka.bootstrap.servers"),
        topic=given.optional_text("topic"),
        is_transactional=guarantee == EXACTLY_ONCE,
        id_prefix=given.text("transactionalIdPrefix", "tidegate-spark"),
        transaction_timeout_ms=given.integer("kafka.transaction.timeout.ms", 1_000) or TRANSACTION_TIMEOUT_MS,
        delivery_timeout_ms=given.integer("kafka.delivery.timeout.ms", 1_000) or DELIVERY_TIMEOUT_MS,
        request_bytes_max=given.integer("kafka.max.request.size", 1) or REQUEST_BYTES,
        producer=producer,
        protocol=protocol,
        mechanism=given.one_of("kafka.sasl.mechanism", "PLAIN", _MECHANISMS),
        username=given.optional_text("kafka.sasl.username"),
        password_variable=given.text("kafka.sasl.passwordVariable"),
        tls_files={name: given.text(name) for name in files if given.text(name)},
    )
