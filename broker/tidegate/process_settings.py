"""Settings of a broker as a process: Redis, addresses, connections, lease."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

AddressMode = Literal["direct", "single", "external"]

_ABOVE: Final = {"lease_suspect_ms": "lease_renew_ms", "lease_gone_ms": "lease_suspect_ms"}
"""Settings that must be greater than another setting."""


class ProcessSettings(BaseSettings):
    """What a broker needs before it serves groups, topics and logs."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", frozen=True, extra="ignore", validate_default=True)

    # -- the store
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Address of Redis or Valkey, the only store of the cluster: "
        "redis://[user:password@]host:port/db, "
        "redis+sentinel://[user:password@]host:port,host:port/service/db or "
        "redis+cluster://[user:password@]host:port,host:port; write rediss for TLS",
    )
    redis_ca_file: str | None = Field(
        None,
        description="PEM file of the authorities that may sign Redis's certificate; set it for a private "
        "authority; default: the system's",
    )
    redis_client_cert_file: str | None = Field(
        None,
        description="PEM certificate that this broker presents to Redis; set it when Redis requires client "
        "certificates",
    )
    redis_client_key_file: str | None = Field(
        None, description="PEM key of redis_client_cert_file; default: the key is in that file"
    )
    redis_tls_check_hostname: bool = Field(
        True,
        description="Require that Redis's certificate names the host that the broker connects to; turn it off only "
        "where certificates carry no host names",
    )
    redis_sentinel_username: str | None = Field(None, description="User name for the sentinels; default: none")
    redis_sentinel_password: str | None = Field(None, description="Password for the sentinels; default: none")
    redis_sentinel_tls: bool | None = Field(
        None, description="Use TLS to the sentinels; default: as redis_url says for the servers"
    )
    key_prefix: str = Field(
        "tidegate",
        pattern=r"^[^{}\s]{1,64}$",
        description="Prefix of every key in Redis; give each cluster its own where several share one Redis server",
    )
    coordinator_shards: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Number of shards that groups are spread over; it is fixed when the cluster is created",
    )
    redis_command_timeout_ms: int = Field(
        5_000,
        ge=50,
        description="Time after which a Redis command without a reply fails; raise it if Redis stalls for longer "
        "than this, for instance while it forks",
    )
    redis_connect_timeout_ms: int = Field(
        2_000, ge=50, description="Time after which a connection attempt to Redis fails; raise it for distant servers"
    )
    redis_allow_eviction: bool = Field(
        False,
        description="Start although Redis's maxmemory-policy may evict keys; records and offsets are lost when it does",
    )

    # -- this broker
    host: str = Field(
        "127.0.0.1",
        description="Address that the broker listens on; 0.0.0.0 listens on all interfaces and needs advertised_host",
    )
    port: int = Field(9092, ge=0, le=65_535, description="Port that the broker listens on; 0 takes a free port")
    advertised_host: str | None = Field(
        None, description="Host name that clients connect to; set it when clients cannot reach `host`; default: host"
    )
    advertised_port: str | None = Field(
        None,
        pattern=r"^(\d+|(\d*\{ordinal\})|(\d+\+\{ordinal\}))$",
        description="Port that clients connect to; default: port; in address mode external also a template such as "
        "3000{ordinal} or 30000+{ordinal}",
    )
    address_mode: AddressMode = Field(
        "direct",
        description="How clients reach brokers; direct: each broker has its own address; single: all share one "
        "load-balanced address; external: the advertised address is a template with {ordinal}",
    )
    listeners: str | None = Field(
        None,
        description="Several listeners, in place of host and port: INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:19092",
    )
    advertised_listeners: str | None = Field(
        None,
        description="Address that clients of each listener connect to, in the form of `listeners`; default: the "
        "address it is bound to",
    )
    listener_security_protocol_map: str | None = Field(
        None,
        description="PLAINTEXT or SSL for each listener: INTERNAL:PLAINTEXT,EXTERNAL:SSL; default: the listener's name",
    )
    listener_address_modes: str | None = Field(
        None, description="Address mode of listeners that differ from address_mode: EXTERNAL:single"
    )
    ssl_certificate_file: str | None = Field(
        None,
        description="PEM certificate of SSL listeners, followed by its chain; the broker reads it again when the "
        "file changes",
    )
    ssl_key_file: str | None = Field(
        None, description="PEM key of ssl_certificate_file, not encrypted; default: the key is in that file"
    )
    ssl_client_ca_file: str | None = Field(
        None,
        description="PEM certificates of the authorities that may sign clients' certificates; set it to "
        "authenticate clients by certificate",
    )
    ssl_client_auth: Literal["required", "requested"] = Field(
        "required",
        description="Whether SSL listeners refuse a client without a certificate (required) or accept it "
        "(requested); needs ssl_client_ca_file",
    )
    node_id: int | None = Field(
        None, ge=0, description="Fixed node id of this broker; default: the broker leases the lowest free one"
    )
    rack: str | None = Field(
        None, description="Rack or availability zone of this broker, as clients see it in Metadata"
    )
    admin_host: str = Field("127.0.0.1", description="Address that the admin HTTP server listens on")
    admin_port: int = Field(8080, ge=0, le=65_535, description="Port of the admin HTTP server; 0 takes a free port")
    admin_operator_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Bearer token of operators; without it and without admin_operator_password the admin HTTP is "
        "read-only",
    )
    admin_operator_token_file: str | None = Field(None, description="File that contains admin_operator_token")
    admin_operator_password: SecretStr | None = Field(
        None, min_length=8, description="Password of the user `operator` for HTTP basic authentication and the console"
    )
    admin_operator_password_file: str | None = Field(None, description="File that contains admin_operator_password")
    admin_viewer_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Token that is required to read groups, topics and brokers; default: everybody may read them",
    )
    admin_viewer_token_file: str | None = Field(None, description="File that contains admin_viewer_token")
    admin_allowed_hosts: str = Field(
        "",
        description="Further host names, separated by commas, that requests to the admin HTTP may name; set it "
        "behind a proxy or a DNS name",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of events that are logged"
    )
    tracing: bool = Field(
        False,
        description="Export OpenTelemetry spans of requests; needs the extra `otel`, and the OTEL_* variables name "
        "the collector",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of log lines: text for people, json for log collectors"
    )

    # -- sockets
    socket_request_max_bytes: int = Field(
        104_857_600,
        ge=1024,
        lt=0x16 << 24,
        description="Maximum size of one request; raise it together with message_max_bytes",
    )
    connections_max: int = Field(
        20_000, ge=1, description="Maximum number of concurrent client connections; further ones are closed at once"
    )
    connections_max_idle_ms: int = Field(
        600_000, ge=1_000, description="Time without a request after which a client connection is closed"
    )
    connections_max_age_ms: int = Field(
        0,
        ge=0,
        description="Age at which a connection is closed between two requests, varied by 20 %; set it where a load "
        "balancer must spread clients again; 0 never closes",
    )
    connection_rebalance_window_ms: int = Field(
        60_000,
        ge=0,
        description="Time over which existing brokers close a share of their connections after brokers have "
        "joined, so that clients move to them; 0 leaves that to clients' metadata refreshes",
    )
    requests_in_flight_bytes_max: int = Field(
        512 << 20,
        ge=1 << 20,
        description="Maximum bytes of unanswered requests of all connections; when it is reached, the broker stops "
        "reading large requests; lower it on hosts with little memory",
    )
    shutdown_timeout_ms: int = Field(
        20_000,
        ge=0,
        description="Maximum duration of a graceful shutdown, from SIGTERM to exit; keep it below the process "
        "manager's kill timeout",
    )
    drain_notice_ms: int = Field(
        0,
        ge=0,
        description="Time between failing the readiness probe and closing connections during a shutdown; raise it "
        "for slow load balancers; capped at a quarter of shutdown_timeout_ms",
    )

    # -- leases
    lease_renew_ms: int = Field(
        250,
        ge=20,
        description="Interval between renewals of a broker's lease; raise it together with lease_suspect_ms where "
        "Redis is slow",
    )
    lease_suspect_ms: int = Field(
        750,
        ge=50,
        description="Time without a renewal after which clients are no longer directed to a broker; raise it where "
        "processes are paused for long",
    )
    lease_gone_ms: int = Field(
        10_000,
        ge=500,
        description="Time without a renewal after which a broker is removed from the cluster and its node id is "
        "released",
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
        """Host and port that this broker advertises in `direct` mode."""
        return self.advertised_host or self.host, int(self.advertised_port or self.port)
