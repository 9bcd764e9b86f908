"""Settings of a broker as a process: Redis, addresses, connections, lease."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

AddressMode = Literal["direct", "single", "external"]


class ProcessSettings(BaseSettings):
    """What a broker needs before it serves groups, topics and logs."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", frozen=True, extra="ignore", validate_default=True, defer_build=True
    )

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
        None, description="PEM key of redis_client_cert_file; set it if that file does not contain the key"
    )
    redis_sentinel_username: str | None = Field(
        None, description="User name for the sentinels; set it where they require one; default: none"
    )
    redis_sentinel_password: str | None = Field(
        None, description="Password for the sentinels; set it where they require one; default: none"
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
        description="Number of shards that groups are spread over; raise it before the first start for a Redis "
        "Cluster of many nodes; it is fixed when the cluster is created",
    )
    redis_command_timeout_ms: int = Field(
        5_000,
        ge=50,
        description="Time after which a Redis command without a reply fails, and two fifths of it for a connection "
        "attempt; raise it if Redis stalls for longer than this, for instance while it forks",
    )
    redis_allow_eviction: bool = Field(
        False,
        description="Start although Redis's maxmemory-policy may evict keys; records and offsets are lost when it does",
    )

    # -- this broker
    host: str = Field(
        "127.0.0.1",
        description="Address that the broker listens on; 0.0.0.0 listens on all interfaces and needs "
        "advertised_listeners",
    )
    port: int = Field(9092, ge=0, le=65_535, description="Port that the broker listens on; 0 takes a free port")
    address_mode: str = Field(
        "direct",
        description="How clients reach brokers; direct: each broker has its own address; single: all share one "
        "load-balanced address; external: the advertised address is a template with {ordinal}; change it where clients "
        "cannot reach every broker by itself; a listener may have its own: direct,EXTERNAL:single",
    )
    listeners: str | None = Field(
        None,
        description="Bind addresses of several listeners, in place of host and port; set it to serve several "
        "networks: INTERNAL://0.0.0.0:9092,EXTERNAL://0.0.0.0:19092",
    )
    advertised_listeners: str | None = Field(
        None,
        description="Address that clients of each listener connect to, in the form of `listeners`; set it when "
        "clients cannot reach the bind address, which is the default: PLAINTEXT://kafka-1.example.org:9092; in address "
        "mode external a template such as EXTERNAL://kafka-{ordinal}.example.org:30000+{ordinal}",
    )
    listener_security_protocol_map: str | None = Field(
        None,
        description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL for each listener; set it for TLS or authentication: "
        "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL; default: the listener's name",
    )
    ssl_certificate_file: str | None = Field(
        None,
        description="PEM certificate of SSL listeners, followed by its chain; set it for TLS; the broker reads it "
        "again when the file changes",
    )
    ssl_key_file: str | None = Field(
        None, description="PEM key of ssl_certificate_file, not encrypted; set it if that file does not contain the key"
    )
    ssl_client_ca_file: str | None = Field(
        None,
        description="PEM certificates of the authorities that may sign clients' certificates; set it to "
        "authenticate clients by certificate",
    )
    ssl_client_auth: Literal["required", "requested"] = Field(
        "required",
        description="Whether SSL listeners refuse a client without a certificate (required) or accept it "
        "(requested), with ssl_client_ca_file; change it while clients get certificates",
    )
    ssl_principal_mapping_rules: str = Field(
        "DEFAULT",
        description="Rules that turn the subject of a client's certificate into a user name, of which the first that "
        "matches counts; set them for short names: RULE:^CN=([^,]+),.*$/$1/L,DEFAULT; DEFAULT takes the whole subject",
    )
    ssl_org_mapping_rules: str = Field(
        "",
        description="Rules of the same form that turn the subject into the client's organisation, default where none "
        "matches; set them if certificates name organisations: RULE:^CN=[^,]+,OU=([^,]+),.*$/$1/L",
    )
    sasl_enabled_mechanisms: str = Field(
        "SCRAM-SHA-512,SCRAM-SHA-256",
        pattern=r"^(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER)(,(PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER))*$",
        description="Mechanisms that SASL listeners offer, of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER; "
        "change it for tokens, or for clients without SCRAM; PLAIN sends the password and is for TLS only",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = Field(
        None,
        description="Address of the issuer's keys (JWKS), which sign OAUTHBEARER tokens; required for that mechanism;"
        " file:// reads a file",
    )
    sasl_oauthbearer_expected_issuer: str | None = Field(
        None,
        description="Issuer that OAUTHBEARER tokens must name; set it if the keys sign tokens of several issuers; "
        "default: any",
    )
    sasl_oauthbearer_expected_audience: str | None = Field(
        None,
        description="Audiences, separated by commas, of which an OAUTHBEARER token must name one; set it to refuse "
        "tokens for other services; default: any",
    )
    sasl_oauthbearer_required_scope: str | None = Field(
        None,
        description="Scopes, separated by commas, that an OAUTHBEARER token must all have, in its claim scope or scp;"
        " set it to refuse tokens without them; default: none",
    )
    sasl_oauthbearer_sub_claim_name: str = Field(
        "sub", description="Claim of a token that names the user; change it if the issuer names users in another claim"
    )
    sasl_oauthbearer_org_claim_name: str | None = Field(
        None,
        description="Claim of a token that names the organisation the user acts in; set it to separate organisations; "
        "default: all tokens act in the organisation `default`",
    )
    connections_max_reauth_ms: int = Field(
        0,
        ge=0,
        description="Time after which a SASL client must authenticate again, or its connection is closed; set it so "
        "that deleted users lose access; 0 never requires it",
    )
    acl_enabled: bool = Field(
        False,
        description="Check every request against access control lists; enable it together with authentication; "
        "without it, everybody who reaches a listener may do everything",
    )
    super_users: str = Field(
        "",
        description="Users that access control lists do not apply to, separated by semicolons; set it for operators: "
        "User:admin;User:ops",
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False, description="Allow every operation on a resource that no access rule names; enable it while you migrate"
    )
    audit_file: str = Field(
        "",
        description="File that security audit events are appended to, one JSON object (OCSF) a line; set it to "
        "collect them outside Redis; - for standard output",
    )
    audit_stream_bytes: int = Field(
        0,
        ge=0,
        description="Memory of the stream of security audit events in Redis, such as 67108864; set it to use "
        "`tidegate audit`; 0 writes none",
    )
    node_id: int | None = Field(
        None,
        ge=0,
        description="Fixed node id of this broker; set it where dashboards or clients name brokers by id; "
        "default: the last one of its own address, or else the lowest free one",
    )
    processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Number of broker processes that `tidegate serve` runs and restarts, one core each; raise it on "
        "hosts with several cores; process n has the ports port + n and admin_port + n",
    )
    rack: str | None = Field(
        None,
        description="Rack or availability zone of this broker, as clients see it in Metadata; set it for "
        "clients and tools that know zones",
    )
    admin_host: str = Field(
        "127.0.0.1",
        description="Address that the admin HTTP server listens on; set 0.0.0.0 for probes and scrapes from "
        "other hosts",
    )
    admin_port: int = Field(8080, ge=0, le=65_535, description="Port of the admin HTTP server; 0 takes a free port")
    admin_operator_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Bearer token of operators; without it and without admin_operator_password the admin HTTP is "
        "read-only",
    )
    admin_operator_password: SecretStr | None = Field(
        None,
        min_length=8,
        description="Password of the user `operator` for the console and HTTP basic authentication; "
        "set it to change things there",
    )
    admin_viewer_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Token that is required to read groups, topics and brokers; set it to restrict reading; default: "
        "everybody may read",
    )
    admin_roles: str = Field(
        "",
        description="Roles of people at the admin HTTP, `User:alice=operator;User:bob=viewer;User:carol=admin`, with "
        "`User:*` for all others who are authenticated; set it to have each person's name in the audit; nobody reads "
        "without a role then",
    )
    admin_oidc_issuer_url: str | None = Field(
        None,
        description="Issuer of OpenID Connect at which people log in to the console; set it for single sign-on, and "
        "allow the redirect to `/console/login/callback` there",
    )
    admin_oidc_client_id: str | None = Field(
        None, description="Client id of the console at the issuer; set it together with admin_oidc_issuer_url"
    )
    admin_oidc_client_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="Client secret of the console at the issuer; set it for a confidential client; default: PKCE alone",
    )
    admin_oidc_user_claim_name: str = Field(
        "sub",
        description="Claim of an id_token that names the user in admin_roles; change it if `sub` is not a readable "
        "name",
    )
    admin_oidc_org_claim_name: str | None = Field(
        None,
        description="Claim of an id_token that names the organisation; set it to confine people to their "
        "organisation; default: all act in `default`, which is the whole cluster",
    )
    admin_allowed_hosts: str = Field(
        "",
        description="Further host names, separated by commas, that requests to the admin HTTP may name; set it "
        "behind a proxy or a DNS name",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of events that are logged; debug is for the analysis of a problem"
    )
    tracing: bool = Field(
        False,
        description="Export OpenTelemetry spans of requests; enable it where a collector runs, which the OTEL_* "
        "variables name; needs the extra `otel`",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of log lines: text for people, json for log collectors"
    )

    # -- sockets
    connections_max: int = Field(
        20_000,
        ge=1,
        description="Maximum number of concurrent client connections; further ones are closed at once; "
        "raise it together with the limit of open files",
    )
    connections_max_idle_ms: int = Field(
        600_000,
        ge=1_000,
        description="Time without a request after which a client connection is closed; lower it to free idle "
        "connections sooner",
    )
    connections_max_age_ms: int = Field(
        0,
        ge=0,
        description="Age at which a connection is closed between two requests, varied by 20 %; set it where a load "
        "balancer must spread clients again; 0 never closes",
    )
    memory_max: int = Field(
        0,
        ge=0,
        description="Memory of this process in bytes, which limits its caches and request buffers, and one request to"
        " a quarter of it; set it where the process has no memory limit of its own; 0 takes the limit of "
        "its cgroup, or 2 GiB without one",
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
    broker_lease_timeout_ms: int = Field(
        10_000,
        ge=800,
        description="Time without a renewal of its lease after which a broker is removed from the cluster and its "
        "node id is released; a lease is renewed 40 times in this time, and after three missed renewals "
        "clients are directed elsewhere; raise it where Redis or processes stall for longer",
    )

    @property
    def redis_connect_timeout_ms(self) -> int:
        """Time after which a connection attempt to Redis fails."""
        return self.redis_command_timeout_ms * 2 // 5

    @property
    def broker_lease_renew_ms(self) -> int:
        """Interval between renewals of a broker's lease."""
        return self.broker_lease_timeout_ms // 40

    @property
    def broker_lease_suspect_ms(self) -> int:
        """Time without a renewal after which clients are no longer directed to a broker."""
        return 3 * self.broker_lease_renew_ms
