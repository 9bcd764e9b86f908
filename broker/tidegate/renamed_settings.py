"""Former settings. A former name is accepted for one version, with a warning that names the new one; a setting that
became a constant has no effect, and a warning says so for one version; one that clients depend on prevents the start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

RENAMED: Final = {
    "drain_budget_ms": "shutdown_timeout_ms",
    "group_heartbeat_hold_max_ms": "heartbeat_delay_max_ms",
    "group_share_heartbeat_interval_ms": "group_consumer_heartbeat_interval_ms",
    "group_share_session_timeout_ms": "group_consumer_session_timeout_ms",
    "lease_gone_ms": "broker_lease_timeout_ms",
    "listener_address_modes": "address_mode",
    "offsets_topic_interval_ms": "internal_topics_interval_ms",
}
REMOVED: Final = frozenset(
    {
        "admin_audit_entries_max",
        "admin_audit_undo_bytes_max",
        "admin_connections_max",
        "admin_idle_timeout_ms",
        "admin_oidc_scope",
        "admin_request_timeout_ms",
        "archive_cache_bytes",
        "archive_footer_cache",
        "archive_read_threads",
        "archive_read_timeout_ms",
        "audit_file_bytes",
        "connection_frame_timeout_ms",
        "connection_in_flight_max",
        "connection_out_bytes_max",
        "connection_rebalance_window_ms",
        "connections_spread_ms",
        "decompressed_batch_bytes_max",
        "errors_deadletterqueue_topic_name_prefix",
        "fetch_max_bytes",
        "fetch_wait_poll_ms",
        "group_events_max",
        "group_max_session_timeout_ms",
        "group_new_member_join_timeout_ms",
        "group_park_lease_ms",
        "group_share_delivery_count_limit",
        "group_share_max_size",
        "group_share_partition_max_record_locks",
        "group_share_record_lock_duration_ms",
        "group_wait_poll_ms",
        "lag_samples_max",
        "lease_renew_ms",
        "lease_suspect_ms",
        "log_entry_bytes_max",
        "log_retention_check_interval_ms",
        "log_snapshot_interval_bytes",
        "log_snapshot_interval_entries",
        "log_tail_cache_bytes",
        "max_incremental_fetch_session_cache_slots",
        "metadata_cache_bytes",
        "metrics_exporter_names",
        "metrics_handover_ms",
        "metrics_partitions_max",
        "mirror_groups",
        "mirror_pending_max",
        "node_id_reuse_ms",
        "offset_metadata_max_bytes",
        "offsets_retention_check_interval_ms",
        "produce_gap_wait_ms",
        "produce_validate_records",
        "producer_id_expiration_ms",
        "redis_connect_timeout_ms",
        "redis_in_flight_bytes_max",
        "redis_in_flight_max",
        "redis_memory_percent_max",
        "redis_sentinel_tls",
        "redis_tls_check_hostname",
        "requests_in_flight_bytes_max",
        "sasl_oauthbearer_scope_claim_name",
        "socket_request_max_bytes",
        "topic_partitions_max",
        "topic_poll_ms",
        "transaction_max_timeout_ms",
        "usage_sample_interval_ms",
        "usage_samples_max",
    }
)  # fmt: skip
"""Settings that are constants now, each in the module that applies it, follow from another, or are configs that change
at run time."""
REPLACED: Final = dict.fromkeys(
    ("advertised_host", "advertised_port"), "TIDEGATE_ADVERTISED_LISTENERS=PLAINTEXT://host:port"
)
"""Removed settings that a broker must not ignore, each with what to set instead: it does not start."""
_VARIABLES: Final = {f"TIDEGATE_{old}".upper(): f"TIDEGATE_{new}".upper() for old, new in RENAMED.items()}


def renamed(folder: Path | None) -> dict[str, str]:
    """Variables, and files of `folder`, that have a former name, each with the name to use instead."""
    return {name: _VARIABLES[name.upper()] for name in _given(folder) if name.upper() in _VARIABLES}


def removed(folder: Path | None) -> list[str]:
    """Variables, and files of `folder`, of former settings that have no effect any more."""
    variables = {f"TIDEGATE_{name}".upper() for name in REMOVED}
    return [name for name in _given(folder) if name.upper() in variables]


def replaced(folder: Path | None) -> dict[str, str]:
    """Variables, and files of `folder`, of settings that something else replaced, each with what to set instead."""
    variables = {f"TIDEGATE_{name}".upper(): instead for name, instead in REPLACED.items()}
    return {name: variables[name.upper()] for name in _given(folder) if name.upper() in variables}


def _given(folder: Path | None) -> list[str]:
    files = [one.name for one in folder.iterdir()] if folder else []
    return sorted({*os.environ, *files})


class RenamedSource(PydanticBaseSettingsSource):
    """Values that are given under a former name."""

    def __init__(self, settings_cls: type[BaseSettings], folder: Path | None) -> None:
        super().__init__(settings_cls)
        self._folder = folder

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Unused: `__call__` reads all at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for old, new in renamed(self._folder).items():
            text = os.environ.get(old)
            if text is None and self._folder is not None:
                text = (self._folder / old).read_text("utf-8").strip()
            values[new.removeprefix("TIDEGATE_").lower()] = text
        return values
