"""Every setting of a broker: unit, default, description.

Settings are read once, from `TIDEGATE_*` environment variables, and never changed. Command-line options override
variables, which override files of the same names in TIDEGATE_SECRETS_DIR. Names are Kafka's, with underscores, where
Kafka has the setting. The help and `docs/settings.md` are generated from this module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsError,
)

from tidegate.process_settings import ProcessSettings
from tidegate.renamed_settings import RenamedSource, removed, renamed

logger = structlog.get_logger()

SECRETS: Final = frozenset(
    {
        "redis_url", "redis_sentinel_password", "admin_operator_token", "admin_operator_password", "admin_viewer_token",
        "archive_path",
    }
)  # fmt: skip
"""Settings whose values are never printed; the URLs of Redis and of the archive may contain a password or keys."""
SECRETS_DIR: Final = "TIDEGATE_SECRETS_DIR"
"""Directory with files named like the variables and containing their values, as mounted Kubernetes Secrets."""


def secrets_folder() -> Path | None:
    """The directory TIDEGATE_SECRETS_DIR; None when it is not set. Raises SettingsError when it does not exist."""
    named = os.environ.get(SECRETS_DIR)
    if not named:
        return None
    if not Path(named).is_dir():
        raise SettingsError(f"{SECRETS_DIR}={named}: there is no such folder")
    return Path(named)


def renamed_variables() -> dict[str, str]:
    """Variables and secret files in use that have a former name, each with the current name."""
    return renamed(secrets_folder())


def removed_variables() -> list[str]:
    """Variables and secret files in use of removed settings."""
    return removed(secrets_folder())


def warn_of_former_settings() -> None:
    """Log one line for each variable and secret file that has a former name or belongs to a removed setting."""
    for variable, name in renamed_variables().items():
        logger.warning("setting_renamed", variable=variable, use=name)
    for variable in removed_variables():
        logger.warning("setting_without_effect", variable=variable, reason="its value is fixed now")


class Settings(ProcessSettings):
    """The settings of one broker process."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Sources in order of precedence, highest first."""
        folder = secrets_folder()
        files = [SecretsSettingsSource(settings_cls, secrets_dir=folder)] if folder is not None else []
        return init_settings, env_settings, *files, RenamedSource(settings_cls, folder)

    # -- groups
    group_min_session_timeout_ms: int = Field(
        6_000,
        ge=1,
        description="Minimum session timeout that a member may request; lower it to detect dead members sooner",
    )
    group_max_session_timeout_ms: int = Field(
        1_800_000, ge=1, description="Maximum session timeout that a member may request"
    )
    group_initial_rebalance_delay_ms: int = Field(
        3_000,
        ge=0,
        description="Time that an empty group waits for further members before its first generation; 0 starts at "
        "once, with more rebalances",
    )
    group_max_size: int = Field(
        5_000, ge=1, description="Maximum number of members of a group; further members are refused"
    )
    offset_metadata_max_bytes: int = Field(
        4_096, ge=0, description="Maximum length of the metadata of one committed offset, in UTF-16 units"
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        description="Time for which the offsets of an empty group are kept; raise it if consumers pause for longer",
    )
    offsets_retention_check_interval_ms: int = Field(
        600_000, ge=100, description="Interval between two searches for expired offsets"
    )
    heartbeat_delay_max_ms: int = Field(
        3_000,
        ge=0,
        description="Maximum time that a heartbeat reply is delayed until the group rebalances, for clients that "
        "support it; 0 replies at once, so that members learn of a rebalance at their next heartbeat",
    )
    group_events_max: int = Field(
        10_000,
        ge=0,
        description="Number of events that are kept for each shard of groups; raise it for a longer history; 0 "
        "keeps none",
    )
    lag_sample_interval_ms: int = Field(
        10_000,
        ge=0,
        description="Interval between two samples of every group's lag, taken by one elected broker; 0 takes none",
    )
    metrics_groups_max: int = Field(
        1_000,
        ge=0,
        description="Maximum number of groups on /metrics; the metric tidegate_series_left_out counts the others",
    )
    metrics_partitions_max: int = Field(
        10_000, ge=0, description="Maximum number of partitions of groups, and of topics, on /metrics"
    )
    metrics_handover_ms: int = Field(
        15_000,
        ge=0,
        description="Time without cluster metrics when another broker takes over exporting them; set it to the "
        "scrape interval, so that no scrape sees both",
    )
    metrics_exporter_names: str = Field(
        "kafka_exporter,kminion",
        pattern=r"^((kafka_exporter|kminion)(,(kafka_exporter|kminion))*)?$",
        description="Exporters whose metric names are exported as well, for existing dashboards: kafka_exporter, "
        "kminion; empty: none",
    )
    mirror_groups: bool = Field(
        True,
        description="Show groups as Redis consumer groups on the streams of partitions; default of the topic "
        "setting tidegate.mirror.enable",
    )

    # -- topics
    auto_create_topics_enable: bool = Field(True, description="Create an unknown topic when a client asks for it")
    num_partitions: int = Field(
        1, ge=1, le=100_000, description="Number of partitions of a topic that is created without a count"
    )
    delete_topic_enable: bool = Field(True, description="Allow clients and operators to delete topics")

    # -- the log
    message_max_bytes: int = Field(
        1_048_588, ge=0, description="Maximum size of a record batch; default of the topic setting max.message.bytes"
    )
    log_retention_ms: int = Field(
        604_800_000,
        ge=-1,
        description="Time for which records are kept; default of the topic setting retention.ms; -1 keeps them for "
        "ever",
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description="Bytes of records that a partition keeps; default of the topic setting retention.bytes; -1 is "
        "without limit",
    )
    log_retention_check_interval_ms: int = Field(
        30_000, ge=50, description="Interval between two searches for records whose retention is over"
    )
    log_entry_bytes_max: int = Field(
        1 << 20,
        ge=1,
        description="Maximum size of one stream entry, into which small batches are joined; a larger batch has an "
        "entry of its own",
    )
    log_tail_cache_bytes: int = Field(
        256 << 20,
        ge=0,
        description="Memory of this broker for recent entries, from which consumers at the end of a log read; 0 "
        "disables the cache",
    )
    produce_validate_records: bool = Field(
        True,
        description="Check the structure of the records of every produced batch, about 1 us each; disable it only if "
        "all producers are trusted, because one damaged batch stops the consumers of its partition",
    )
    fetch_max_bytes: int = Field(57_671_680, ge=1024, description="Maximum bytes of records in one fetch reply")
    usage_sample_interval_ms: int = Field(
        60_000,
        ge=0,
        description="Interval between two entries of what this broker served, by topic and group; 0 writes none",
    )
    archive_path: str | None = Field(
        None,
        description="Root of the archive that holds old records, the same for all brokers: a local folder or a URI "
        "(s3://, gs://, file://); without it there is no tiered storage",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000, ge=1_000, description="Time after which the state of an idle idempotent producer is removed"
    )

    # -- durability
    durability: Annotated[str, NoDecode] = Field(
        "memory",
        pattern=r"^(memory|replicated:[1-9][0-9]*|fsynced(:[0-9]+)?)$",
        description="What a produce request with acks=all waits for: memory (Redis's reply), replicated:<n> (n "
        "replicas, by WAIT), fsynced[:<n>] (the disks, by WAITAOF)",
    )
    durability_timeout_ms: int = Field(
        5_000,
        ge=1,
        description="Time after which an append that durability does not confirm answers "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    )
