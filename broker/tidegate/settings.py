"""Every setting of a broker: unit, default, description.

Settings are read once, from `TIDEGATE_*` environment variables, and never changed. Command-line options override
variables, which override files of the same names in TIDEGATE_SECRETS_DIR. Names are Kafka's, with underscores, where
Kafka has the setting. The help and `docs/settings.md` are generated from this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsError,
)

from tidegate.process_settings import ProcessSettings
from tidegate.renamed_settings import RenamedSource, removed, renamed, replaced

logger = structlog.get_logger()

SECRETS: Final = frozenset(
    {
        "redis_url", "redis_sentinel_password", "admin_operator_token", "admin_operator_password", "admin_viewer_token",
        "admin_oidc_client_secret",
        "archive_path",
    }
)  # fmt: skip
"""Settings whose values are never printed; the URLs of Redis and of the archive may contain a password or keys."""
_LAG_SAMPLES_PER_USAGE_REPORT: Final = 6
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


def check_replaced_variables() -> None:
    """Raises SettingsError, which names what to set, for variables and secret files of settings that were replaced."""
    for variable, instead in replaced(secrets_folder()).items():
        raise SettingsError(f"{variable} was removed: set {instead}")


def removed_variables() -> list[str]:
    """Variables and secret files in use of removed settings."""
    return removed(secrets_folder())


def warn_of_former_settings() -> None:
    """Log one line for each variable and secret file that has a former name or belongs to a removed setting."""
    for variable, name in renamed_variables().items():
        logger.warning("setting_renamed", variable=variable, use=name)
    for variable in removed_variables():
        logger.warning(
            "setting_without_effect", variable=variable, reason="it is a constant now, or follows from another setting"
        )


class SecretFilesSource(PydanticBaseSettingsSource):
    """Secrets whose variable, with `_FILE` behind its name, names a file that contains the value."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: `__call__` reads all at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Raises SettingsError, which names the variable and never the value."""
        values = {}
        for name in sorted(SECRETS):
            variable = f"TIDEGATE_{name}".upper()
            file = os.environ.get(f"{variable}_FILE")
            if file and variable in os.environ:
                raise SettingsError(f"{variable} and {variable}_FILE are both set: one of them, please")
            if file:
                values[name] = _text_of(f"{variable}_FILE={file}", Path(file))
        return values


def _text_of(named: str, file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{named}: {getattr(error, 'strerror', None) or 'not text'}") from None


class Settings(ProcessSettings):
    """The settings of one broker process."""

    _dynamic_configs: Mapping[str, tuple[Any, ...]] = PrivateAttr(default_factory=dict)

    @property
    def dynamic_configs(self) -> Mapping[str, tuple[Any, ...]]:
        """Kafka's name of a broker config -> its values set at run time, the effective one first (KIP-226)."""
        return self._dynamic_configs

    def set_dynamic_configs(self, values: Mapping[str, tuple[Any, ...]]) -> None:
        """Replace the values set at run time; the settings themselves never change."""
        self._dynamic_configs = values

    @property
    def usage_report_interval_ms(self) -> int:
        """Interval between a broker's reports of usage; 0: none."""
        return self.lag_sample_interval_ms * _LAG_SAMPLES_PER_USAGE_REPORT

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
        has_variables = any(name.upper().startswith("TIDEGATE_") for name in os.environ)
        variables = [env_settings] if has_variables else []  # to look for each setting takes 6 ms
        return init_settings, *variables, SecretFilesSource(settings_cls), *files, RenamedSource(settings_cls, folder)

    # -- groups
    group_min_session_timeout_ms: int = Field(
        6_000,
        ge=1,
        description="Minimum session timeout that a member may request; lower it to detect dead members sooner",
    )
    group_consumer_session_timeout_ms: int = Field(
        45_000,
        ge=1,
        description="Session timeout of members of consumer groups (KIP-848) and share groups, which cannot choose it, "
        "unless the group has its own; lower it to detect dead members sooner",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5_000,
        ge=1,
        description="Heartbeat interval of members of consumer groups (KIP-848) and share groups, unless the group has "
        "its own; lower it to rebalance sooner",
    )
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = Field(
        "bidirectional",
        description="Which groups may change their protocol while they have members: classic ones that a member with "
        "`group.protocol=consumer` joins (`upgrade`), those whose last such member leaves (`downgrade`), both or "
        "neither; restrict it until all clients are tested",
    )
    group_initial_rebalance_delay_ms: int = Field(
        3_000,
        ge=0,
        description="Time that an empty group waits for further members before its first generation; raise it where "
        "members start slowly one after the other; 0 starts at once, with more rebalances",
    )
    group_max_size: int = Field(
        5_000,
        ge=1,
        description="Maximum number of members of a group, 1,000 at most in a share group; raise it for larger groups",
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        description="Time for which the offsets of an empty group are kept; raise it if consumers pause for longer",
    )
    heartbeat_delay_max_ms: int = Field(
        3_000,
        ge=0,
        description="Maximum time that a heartbeat reply is delayed until the group rebalances, for clients that "
        "support it; set 0, to reply at once, if a client cannot wait",
    )
    lag_sample_interval_ms: int = Field(
        10_000,
        ge=0,
        description="Interval between two samples of a group's lag; each broker reports its usage six times less "
        "often; lower it for finer trends; 0 takes none",
    )
    internal_topics_interval_ms: int = Field(
        0,
        ge=0,
        le=60_000,
        description="Interval at which committed offsets and groups are written to the read-only topic "
        "`__consumer_offsets`, and transactions to `__transaction_state`; set it for tools that read these "
        "topics; 0 writes none",
    )
    metrics_groups_max: int = Field(
        1_000,
        ge=0,
        description="Maximum number of groups on /metrics, and a tenth of the maximum number of partitions; the metric "
        "tidegate_series_left_out counts the others; raise it if Prometheus can hold them",
    )

    # -- topics
    auto_create_topics_enable: bool = Field(
        True,
        description="Create an unknown topic when a client asks for it; disable it where only operators create topics",
    )
    num_partitions: int = Field(
        1,
        ge=1,
        le=100_000,
        description="Number of partitions of a topic that is created without a count; raise it for groups of "
        "more consumers",
    )
    delete_topic_enable: bool = Field(
        True, description="Allow clients and operators to delete topics; disable it to protect records"
    )

    errors_deadletterqueue_auto_create_topics_enable: bool = Field(
        False,
        description="Create a missing dead-letter topic, whose name begins with `dlq.`, with the first dead letter of "
        "a share group; enable it if everyone who may configure groups may also create topics",
    )

    # -- the log
    message_max_bytes: int = Field(
        1_048_588,
        ge=0,
        description="Maximum size of a record batch; default of the topic setting max.message.bytes; raise it for "
        "larger records, below the largest request of 100 MiB",
    )
    log_retention_ms: int = Field(
        604_800_000,
        ge=-1,
        description="Time for which records are kept; default of the topic setting retention.ms; raise it for "
        "consumers that read later; -1: no limit",
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description="Maximum size of the records of a partition; default of the topic setting retention.bytes; set it"
        " to limit the memory of Redis; -1: no limit",
    )
    client_metrics_enabled: bool = Field(
        False,
        description="Take the metrics that clients push (KIP-714) and show sums of them at /metrics; enable it with "
        "`tidegate[client-metrics]` installed and subscriptions made by `kafka-client-metrics`",
    )
    archive_path: str | None = Field(
        None,
        description="Root of the archive that holds old records, the same for all brokers; set it for tiered storage: "
        "a local folder or a URI (s3://, gs://, file://)",
    )

    # -- durability
    durability: Annotated[str, NoDecode] = Field(
        "memory",
        pattern=r"^(memory|replicated:[1-9][0-9]*|fsynced(:[0-9]+)?)$",
        description="What records with acks=all, commits and administrative changes wait for: memory (Redis's reply), "
        "replicated:<n> (n replicas, by WAIT), fsynced[:<n>] (the disks, by WAITAOF); change it where what "
        "is acknowledged must survive a failure of Redis",
    )
    durability_timeout_ms: int = Field(
        5_000,
        ge=1,
        description="Time after which what durability does not confirm is answered with an error, an append with "
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND; raise it for slow replicas or disks",
    )
