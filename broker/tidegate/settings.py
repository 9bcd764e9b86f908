"""Every setting of a broker: unit, default, meaning.

Read once from `TIDEGATE_*` environment variables, then handed down, never changed. The command line wins over them,
and they over files of those names in TIDEGATE_SECRETS_DIR. Names are Kafka's with underscores where Kafka has the
setting. Help and `docs/settings.md` come out of this file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import structlog
from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tidegate.renamed_settings import RenamedSource, removed, renamed

logger = structlog.get_logger()

AddressMode = Literal["direct", "single", "external"]

_ABOVE: Final = {"lease_suspect_ms": "lease_renew_ms", "lease_gone_ms": "lease_suspect_ms"}
"""Settings that must be above another one."""

SECRETS: Final = frozenset(
    {
        "redis_url", "redis_sentinel_password", "admin_operator_token", "admin_operator_password", "admin_viewer_token",
        "archive_path",
    }
)  # fmt: skip
"""Settings that are shown to nobody; the addresses of Redis and of the archive may hold a password or keys."""
SECRETS_DIR: Final = "TIDEGATE_SECRETS_DIR"
"""Names a folder of files that are called as variables and hold their values, as mounted Secrets are."""


def secrets_folder() -> Path | None:
    """Of TIDEGATE_SECRETS_DIR; None where it is not set. Raises SettingsError where there is none."""
    named = os.environ.get(SECRETS_DIR)
    if not named:
        return None
    if not Path(named).is_dir():
        raise SettingsError(f"{SECRETS_DIR}={named}: there is no such folder")
    return Path(named)


def renamed_variables() -> dict[str, str]:
    """Variables and secret files in use that bear a former name, each with the name to use instead."""
    return renamed(secrets_folder())


def removed_variables() -> list[str]:
    """Variables and secret files in use of former settings that have no effect any more."""
    return removed(secrets_folder())


def warn_of_former_settings() -> None:
    """Log one line for each variable and secret file that bears a former name or has no effect any more."""
    for variable, name in renamed_variables().items():
        logger.warning("setting_renamed", variable=variable, use=name)
    for variable in removed_variables():
        logger.warning("setting_without_effect", variable=variable, reason="its value is fixed now")


class Settings(BaseSettings):
    """The settings of one broker process."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", frozen=True, extra="ignore", validate_default=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Who wins comes first."""
        folder = secrets_folder()
        files = [SecretsSettingsSource(settings_cls, secrets_dir=folder)] if folder is not None else []
        return init_settings, env_settings, *files, RenamedSource(settings_cls, folder)

    # -- the store
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Redis or Valkey: redis://[user:password@]host:port/db, redis+sentinel://[user:password@]"
        "host:port,host:port/service/db or redis+cluster://[user:password@]host:port,host:port; rediss is with TLS",
    )
    redis_ca_file: str | None = Field(
        None, description="PEM file of the authorities trusted with rediss://; default: the system's"
    )
    redis_client_cert_file: str | None = Field(
        None, description="PEM file of the certificate that this broker shows to Redis, where Redis asks for one"
    )
    redis_client_key_file: str | None = Field(
        None, description="PEM file of its key; default: redis_client_cert_file holds it too"
    )
    redis_tls_check_hostname: bool = Field(
        True, description="with rediss://: the certificate must name the host that was connected to"
    )
    redis_sentinel_username: str | None = Field(None, description="user for the sentinels; default: none")
    redis_sentinel_password: str | None = Field(None, description="password for the sentinels; default: none")
    redis_sentinel_tls: bool | None = Field(
        None, description="whether the sentinels are asked with TLS; default: as the servers, by redis_url"
    )
    key_prefix: str = Field(
        "tidegate", pattern=r"^[^{}\s]{1,64}$", description="prefix of every key; several clusters can share a server"
    )
    coordinator_shards: int = Field(50, ge=1, le=10_000, description="shards of groups; fixed when the cluster is made")
    redis_command_timeout_ms: int = Field(5_000, ge=50, description="ms until a command without an answer fails")
    redis_connect_timeout_ms: int = Field(2_000, ge=50, description="ms until a connection attempt to Redis fails")
    redis_allow_eviction: bool = Field(
        False, description="start although maxmemory-policy may evict keys: data will be lost"
    )

    # -- this broker
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(9092, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    advertised_host: str | None = Field(None, description="host that clients are told; default: host")
    advertised_port: str | None = Field(
        None,
        pattern=r"^(\d+|(\d*\{ordinal\})|(\d+\+\{ordinal\}))$",
        description="port that clients are told; default: port; external: also 3000{ordinal} or 30000+{ordinal}",
    )
    address_mode: AddressMode = Field(
        "direct",
        description="direct: each broker's own address; single: one load-balanced address; "
        "external: what is advertised is a template with {ordinal}",
    )
    listeners: str | None = Field(
        None,
        description="several ports, instead of host and port: INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:19092",
    )
    advertised_listeners: str | None = Field(
        None, description="what clients of each listener are told, as listeners; default: where it is bound"
    )
    listener_security_protocol_map: str | None = Field(
        None,
        description="PLAINTEXT or SSL by listener: INTERNAL:PLAINTEXT,EXTERNAL:SSL; default: the listener's name",
    )
    listener_address_modes: str | None = Field(
        None, description="listeners whose address mode is another than address_mode: EXTERNAL:single"
    )
    ssl_certificate_file: str | None = Field(
        None, description="PEM certificate of SSL listeners, its chain behind it; read again when it changes"
    )
    ssl_key_file: str | None = Field(
        None, description="PEM key of the certificate, not encrypted; default: in ssl_certificate_file"
    )
    ssl_client_ca_file: str | None = Field(
        None, description="PEM certificates of the authorities of clients; without it clients show none"
    )
    ssl_client_auth: Literal["required", "requested"] = Field(
        "required", description="with ssl_client_ca_file: whether a client without a certificate is refused"
    )
    node_id: int | None = Field(None, ge=0, description="fixed node id; default: leased")
    rack: str | None = Field(None, description="rack that clients are told")
    admin_host: str = Field("127.0.0.1", description="address of the admin HTTP")
    admin_port: int = Field(8080, ge=0, le=65_535, description="port of the admin HTTP; 0 takes a free one")
    admin_operator_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="bearer token of operators; without one and without a password nobody changes "
        "anything over the admin HTTP",
    )
    admin_operator_token_file: str | None = Field(None, description="file that holds admin_operator_token")
    admin_operator_password: SecretStr | None = Field(
        None, min_length=8, description="password of the user operator, for HTTP basic and the console"
    )
    admin_operator_password_file: str | None = Field(None, description="file that holds admin_operator_password")
    admin_viewer_token: SecretStr | None = Field(
        None, min_length=16, description="token without which nobody reads groups, topics and brokers; default: all may"
    )
    admin_viewer_token_file: str | None = Field(None, description="file that holds admin_viewer_token")
    admin_allowed_hosts: str = Field(
        "", description="further host names by which the admin HTTP may be asked, with commas between"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    tracing: bool = Field(
        False, description="send spans of requests by OpenTelemetry (extra otel; OTEL_* variables say where to)"
    )
    log_format: Literal["text", "json"] = Field("text", description="text for people, json for collectors")

    # -- sockets
    socket_request_max_bytes: int = Field(
        104_857_600,
        ge=1024,
        lt=0x16 << 24,
        description="largest request frame, bytes; below what a TLS client begins with",
    )
    connections_max: int = Field(20_000, ge=1, description="most client connections at one time")
    connections_max_idle_ms: int = Field(
        600_000, ge=1_000, description="ms without a request until a connection closes"
    )
    connections_max_age_ms: int = Field(
        0, ge=0, description="ms after which a connection is closed between requests (20 % of jitter); 0 never"
    )
    connection_rebalance_window_ms: int = Field(
        60_000,
        ge=0,
        description="ms over which, when brokers come, their share of the others' connections is closed between "
        "requests, so that clients find them; 0 leaves that to clients' own refreshes",
    )
    requests_in_flight_bytes_max: int = Field(
        512 << 20, ge=1 << 20, description="request bytes held by all connections, above which reading pauses"
    )
    shutdown_timeout_ms: int = Field(
        20_000, ge=0, description="ms that a drain may take, from when it is asked for to exit"
    )
    drain_notice_ms: int = Field(
        0,
        ge=0,
        description="ms of a drain in which all is still served, not ready and no longer named, for load balancers "
        "that hear of it late; at most a quarter of shutdown_timeout_ms counts",
    )

    # -- leases
    lease_renew_ms: int = Field(250, ge=20, description="ms between renewals of a broker's lease")
    lease_suspect_ms: int = Field(750, ge=50, description="ms without renewal until a broker is no longer named")
    lease_gone_ms: int = Field(10_000, ge=500, description="ms without renewal until a broker is gone")
    node_id_quarantine_ms: int = Field(
        60_000, ge=0, description="ms after a lease ended until its node id is given again"
    )

    # -- groups
    group_min_session_timeout_ms: int = Field(6_000, ge=1, description="least session timeout of a member")
    group_max_session_timeout_ms: int = Field(1_800_000, ge=1, description="greatest session timeout of a member")
    group_initial_rebalance_delay_ms: int = Field(
        3_000, ge=0, description="ms that an empty group waits for more members before its first generation"
    )
    group_max_size: int = Field(2_147_483_647, ge=1, description="most members of a group")
    group_new_member_join_timeout_ms: int = Field(
        300_000, ge=1_000, description="longest that a new member's first join may be parked"
    )
    group_park_lease_ms: int = Field(
        10_000, ge=500, description="ms that a parked request holds its member without the broker renewing it"
    )
    offset_metadata_max_bytes: int = Field(4_096, ge=0, description="most UTF-16 units of a commit's metadata")
    offsets_retention_minutes: int = Field(
        10_080, ge=1, description="minutes until the offsets of an empty group expire"
    )
    offsets_retention_check_interval_ms: int = Field(
        600_000, ge=100, description="ms between sweeps for expired offsets"
    )
    group_wait_poll_ms: int = Field(500, ge=10, description="longest that a lost wake-up delays a waiting request")
    heartbeat_delay_max_ms: int = Field(
        3_000,
        ge=0,
        description="longest that the answer to a heartbeat is kept back until the group rebalances, for clients that "
        "bear it; 0 answers all at once",
    )
    group_events_max: int = Field(10_000, ge=0, description="events kept for a shard of groups; 0 keeps none")
    lag_sample_interval_ms: int = Field(
        10_000, ge=0, description="ms between samples of every group's lag, taken by one broker; 0 takes none"
    )
    metrics_groups_max: int = Field(
        1_000, ge=0, description="most groups that /metrics tells of; tidegate_series_left_out counts the others"
    )
    metrics_partitions_max: int = Field(
        10_000, ge=0, description="most partitions of groups, and of topics, that /metrics tells of"
    )
    metrics_handover_ms: int = Field(
        15_000,
        ge=0,
        description="ms between one broker's telling of the cluster and another's; the interval of the scraper",
    )
    metrics_exporter_names: str = Field(
        "kafka_exporter,kminion",
        pattern=r"^((kafka_exporter|kminion)(,(kafka_exporter|kminion))*)?$",
        description="exporters under whose names /metrics tells the same: kafka_exporter, kminion; empty: none",
    )
    mirror_groups: bool = Field(
        True, description="show groups as Redis consumer groups; default of tidegate.mirror.enable"
    )

    # -- topics
    auto_create_topics_enable: bool = Field(True, description="create an unknown topic when a client asks for it")
    num_partitions: int = Field(1, ge=1, le=100_000, description="partitions of a topic made without a count")
    delete_topic_enable: bool = Field(True, description="allow topics to be deleted")

    # -- the log
    message_max_bytes: int = Field(1_048_588, ge=0, description="largest batch, bytes; default of max.message.bytes")
    log_retention_ms: int = Field(604_800_000, ge=-1, description="default of retention.ms; -1 keeps for ever")
    log_retention_bytes: int = Field(-1, ge=-1, description="default of retention.bytes; -1 is without limit")
    log_retention_check_interval_ms: int = Field(30_000, ge=50, description="ms between looks for due retention")
    log_entry_bytes_max: int = Field(
        1 << 20, ge=1, description="most bytes of one stream entry, unless one batch is larger"
    )
    log_tail_cache_bytes: int = Field(256 << 20, ge=0, description="bytes of recent entries kept for reads; 0: none")
    fetch_max_bytes: int = Field(57_671_680, ge=1024, description="most record bytes of one fetch reply")
    usage_sample_interval_ms: int = Field(
        60_000, ge=0, description="ms between entries of what this broker served, by topic and group; 0 writes none"
    )
    archive_path: str | None = Field(
        None,
        description="root of the archive that old offsets are read from, the same for all brokers: a local folder or a "
        "URI (s3://, gs://, file://); without it there is no tiered storage",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000, ge=1_000, description="ms until an idle producer's state is dropped"
    )

    # -- durability
    durability: Annotated[str, NoDecode] = Field(
        "memory",
        pattern=r"^(memory|replicated:[1-9][0-9]*|fsynced(:[0-9]+)?)$",
        description="what acks=all means: memory, replicated:<n> (WAIT), fsynced[:<n>] (WAITAOF)",
    )
    durability_timeout_ms: int = Field(
        5_000, ge=1, description="ms until an unproved append answers NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    )

    @field_validator("lease_suspect_ms", "lease_gone_ms")
    @classmethod
    def _above(cls, value: int, info: ValidationInfo) -> int:
        lower = _ABOVE[info.field_name or ""]
        if value <= info.data.get(lower, 0):
            raise ValueError(f"must be above {lower}")
        return value

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port that clients of this broker are told in `direct` mode."""
        return self.advertised_host or self.host, int(self.advertised_port or self.port)
