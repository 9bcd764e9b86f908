"""Every setting of the pipeline: a TOML file, then `TIDEGATE_PIPELINE_*`, which wins.

Sections are tables of the file: `archive.segment_bytes` is `segment_bytes` under `[archive]`, and
`TIDEGATE_PIPELINE_ARCHIVE_SEGMENT_BYTES`. Where a broker has the same setting (`TIDEGATE_REDIS_URL`,
`TIDEGATE_KEY_PREFIX`, `TIDEGATE_ARCHIVE_PATH`), its variable is the default, or the file that `<variable>_FILE` names.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tidegate.records.record import OPENED_BYTES_MAX
from tidegate_pipeline.errors import UsageError


def _brokers(variable: str, default: str) -> str:
    """A broker's variable; with `_FILE` behind its name it names a file that contains the value."""
    file = os.environ.get(f"{variable}_FILE")
    if not file:
        return os.environ.get(variable, default)
    if variable in os.environ:
        raise SettingsError(f"{variable} and {variable}_FILE are both set: one of them, please")
    return Path(file).read_text("utf-8", errors="replace").strip()


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class RedisSettings(_Section):
    """Where the cluster keeps its state."""

    url: str = Field(
        default_factory=partial(_brokers, "TIDEGATE_REDIS_URL", "redis://127.0.0.1:6379/0"),
        description="redis://, rediss://, redis+sentinel://host:port,host:port/service/db or redis+cluster://host:port",
    )
    key_prefix: str = Field(
        default_factory=partial(_brokers, "TIDEGATE_KEY_PREFIX", "tidegate"), description="prefix of every key"
    )
    password_variable: str = Field(
        "", description="name of an environment variable with the password, here and where executors run"
    )
    retry_s: float = Field(30.0, ge=0, description="seconds for which a read is tried again while Redis is away")

    @property
    def option_url(self) -> str:
        """The address as an option; "" where it holds a login, which each process finds in its own settings."""
        return "" if "@" in self.url else self.url

    @property
    def options(self) -> dict[str, str]:
        """As options of the sources and sinks."""
        named = {"redis.passwordVariable": self.password_variable} if self.password_variable else {}
        return {"redis.url": self.option_url, "redis.keyPrefix": self.key_prefix, **named}


class ArchiveSettings(_Section):
    """Where old batches are archived, and the size of segments."""

    path: str = Field(
        default_factory=partial(_brokers, "TIDEGATE_ARCHIVE_PATH", ""),
        description="root of the archive: a local folder or a URI that pyarrow.fs opens (s3://, gs://, file://)",
    )
    segment_bytes: int = Field(128 << 20, ge=1 << 16, description="bytes of batches at which a segment is closed")
    segment_seconds: int = Field(
        900, ge=0, description="seconds for which a partition waits until it has a whole one; not with --once"
    )
    row_group_bytes: int = Field(1 << 20, ge=1 << 12, description="bytes of batches in a row group: one cold fetch")
    recompress: Literal["auto", "never", "always"] = Field(
        "auto", description="zstd for the batch column: auto where the producers did not compress"
    )
    gc_grace: int = Field(86_400, ge=0, description="seconds for which an unpublished file is left alone")


class CheckpointSettings(_Section):
    """Where queries keep how far they are."""

    path: str = Field("", description="folder of the checkpoints, one below it for each query; needed by streams")


class SourceSettings(_Section):
    """How topics are read."""

    max_bytes_per_trigger: int = Field(256 << 20, ge=1, description="stored bytes of one micro-batch")
    decoder: Literal["auto", "numpy", "numba"] = Field("auto", description="auto: numba where it is installed")
    on_corrupt: Literal["fail", "quarantine"] = Field(
        "fail", description="a corrupt batch fails the job; quarantine puts it aside, counts it and continues"
    )
    corrupt_limit: int = Field(100, ge=0, description="corrupt batches of one micro-batch above which the query fails")
    fail_on_data_loss: bool = Field(
        True, description="fail a job if offsets were trimmed before they were read; false continues without them"
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed",
        description="jobs decode and replay: without aborted transactions and up to the first open one; "
        "read_uncommitted takes their records like any other",
    )
    max_decoded_batch: int = Field(
        OPENED_BYTES_MAX, ge=1 << 16, description="bytes of a decompressed batch, above: corrupt; the brokers' limit"
    )


class ValueSettings(_Section):
    """How keys and values become columns."""

    registry: str = Field("", description="schema registry: http://host:port or https://host:port, several with commas")
    user: str = Field("", description="user of the registry, by HTTP basic authentication")
    password_variable: str = Field(
        "",
        description="name of an environment variable, or path of a file, with its password, also where executors run",
    )
    timeout_s: float = Field(10.0, gt=0, description="seconds for which a request to the registry is waited for")
    on_undecodable: Literal["fail", "dead-letter"] = Field(
        "fail", description="an undecodable record fails the job; dead-letter puts it into quarantine/values, counted"
    )
    limit: int = Field(1_000, ge=0, description="dead letters of one task above which the query fails")


class StormSettings(_Section):
    """When rebalances are a storm."""

    window: int = Field(600, ge=1, description="seconds over which generations are counted")
    threshold: int = Field(5, ge=2, description="generations in the window that open an incident")
    watermark: int = Field(120, ge=0, description="seconds for which late events are waited for")


class LagSettings(_Section):
    """How lag is summed up, and when a partition is stuck."""

    window: int = Field(60, ge=1, description="seconds of one row")
    stuck_windows: int = Field(
        5, ge=1, description="windows in which the log continued and nothing was committed, from which on it is stuck"
    )
    watermark: int = Field(120, ge=0, description="seconds for which late samples are waited for")


class CommitSettings(_Section):
    """When a group's commits are reported as a burst or as missing."""

    interval: int = Field(60, ge=1, description="seconds in which commits are counted; at least the brokers' interval")
    threshold: float = Field(4.0, gt=0, description="deviations above the mean that are a burst")
    silence: int = Field(3, ge=1, description="intervals without a commit while records wait that are silence")
    warmup: int = Field(10, ge=1, description="intervals until anything is judged")
    watermark: int = Field(120, ge=0, description="seconds for which late samples are waited for")


class TimelineSettings(_Section):
    """How long the timeline of generations stores an idle group."""

    state_days: int = Field(30, ge=1, description="days without an event after which a group is forgotten")


class UsageSettings(_Section):
    """What is counted of whom."""

    interval: int = Field(3_600, ge=1, description="seconds of one row")
    watermark: int = Field(120, ge=0, description="seconds for which late samples are waited for")


class MetricsSettings(_Section):
    """What Prometheus scrapes of the queries."""

    address: str = Field("", description="host:port at which jobs answer GET /metrics while they run; empty: nowhere")


class LogSettings(_Section):
    """Where Spark talks."""

    path: str = Field(
        "", description="file for what Spark and its Python workers print; - leaves it on stderr; default: see below"
    )


def _flat(settings: Any, prefix: str = "spark") -> Any:
    """`{"executor": {"memory": "2g"}}` -> `{"spark.executor.memory": "2g"}`."""
    if not isinstance(settings, dict):
        return settings
    flat: dict[str, str] = {}
    for name, value in settings.items():
        full = name if name.startswith("spark.") else f"{prefix}.{name}"
        if isinstance(value, dict):
            flat |= _flat(value, full)
        else:
            flat[full] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


class PipelineSettings(BaseSettings):
    """All sections; `spark`, whose names and values go to Spark as they are; `jobs` of `tidegate pipeline run`."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_PIPELINE_", env_nested_delimiter="_", env_nested_max_split=1, frozen=True, extra="forbid"
    )

    redis: RedisSettings = Field(default_factory=partial(RedisSettings.model_validate, {}))
    archive: ArchiveSettings = Field(default_factory=partial(ArchiveSettings.model_validate, {}))
    checkpoint: CheckpointSettings = Field(default_factory=partial(CheckpointSettings.model_validate, {}))
    source: SourceSettings = Field(default_factory=partial(SourceSettings.model_validate, {}))
    values: ValueSettings = Field(default_factory=partial(ValueSettings.model_validate, {}))
    storms: StormSettings = Field(default_factory=partial(StormSettings.model_validate, {}))
    lag: LagSettings = Field(default_factory=partial(LagSettings.model_validate, {}))
    commits: CommitSettings = Field(default_factory=partial(CommitSettings.model_validate, {}))
    timeline: TimelineSettings = Field(default_factory=partial(TimelineSettings.model_validate, {}))
    usage: UsageSettings = Field(default_factory=partial(UsageSettings.model_validate, {}))
    metrics: MetricsSettings = Field(default_factory=partial(MetricsSettings.model_validate, {}))
    log: LogSettings = Field(default_factory=partial(LogSettings.model_validate, {}))
    spark: Annotated[dict[str, str], BeforeValidator(_flat)] = Field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, the environment, the file; the first wins."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load(path: Path | None = None) -> PipelineSettings:
    """The settings of this process. Raises UsageError, naming each that is wrong."""
    if path is not None and not path.is_file():
        raise UsageError(f"no such file: {path}")
    settings = type("FileSettings", (PipelineSettings,), {"model_config": {"toml_file": path}})
    try:
        loaded: PipelineSettings = settings()
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise UsageError(f"settings of the pipeline: {wrong}") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    except (OSError, SettingsError) as error:
        raise UsageError(f"settings of the pipeline: {error}") from None
    return loaded
