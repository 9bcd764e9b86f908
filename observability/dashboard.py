"""grafana/tidegate.json, from a table of panels."""

from __future__ import annotations

import json
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GROUP: Final = 'org=~"$org",group=~"$group"'
_TOPIC: Final = 'org=~"$org",topic=~"$topic"'
_BOTH: Final = f'{_GROUP},topic=~"$topic"'
_ONE: Final = "max without (instance, pod, container, endpoint, node)"
"""The series of the cluster come from one broker at a time."""

Panel = tuple[str, str, str, str, str]
"""Kind, title, unit, query, legend."""

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            ("stat", "Brokers ready", "none", "sum(tidegate_ready)", ""),
            (
                "stat",
                "Groups rebalancing",
                "none",
                f'sum({_ONE} (tidegate_groups{{org=~"$org",state=~".*Rebalance"}})) or vector(0)',
                "",
            ),
            ("stat", "Members missing", "none", f"sum({_ONE} (tidegate_group_members_missing{{{_GROUP}}}))", ""),
            ("stat", "Worst lag", "s", f"max(tidegate_group_topic_lag_seconds{{{_BOTH}}})", ""),
            (
                "stat",
                "Redis memory",
                "percentunit",
                "max(tidegate_redis_memory_used_bytes / (tidegate_redis_memory_max_bytes > 0)) or vector(0)",
                "",
            ),
            ("stat", "Alerts", "none", 'count(ALERTS{alertname=~"Tidegate.*",alertstate="firing"}) or vector(0)', ""),
        ),
    ),
    (
        "Groups",
        (
            (
                "timeseries",
                "Lag, records",
                "short",
                f"{_ONE} (tidegate_group_topic_lag_records{{{_BOTH}}})",
                "{{group}} {{topic}}",
            ),
            (
                "timeseries",
                "Lag, seconds",
                "s",
                f"{_ONE} (tidegate_group_topic_lag_seconds{{{_BOTH}}})",
                "{{group}} {{topic}}",
            ),
            (
                "timeseries",
                "Lag is gone in",
                "s",
                f"{_ONE} (tidegate_group_drain_seconds{{{_BOTH}}})",
                "{{group}} {{topic}}",
            ),
            (
                "timeseries",
                "Consumed",
                "cps",
                f"tidegate:group_topic_consumed_records:rate2m{{{_BOTH}}}",
                "{{group}} {{topic}}",
            ),
            ("timeseries", "Members", "short", f"{_ONE} (tidegate_group_members{{{_GROUP}}})", "{{group}}"),
            (
                "timeseries",
                "Members missing",
                "short",
                f"{_ONE} (tidegate_group_members_missing{{{_GROUP}}})",
                "{{group}}",
            ),
            (
                "timeseries",
                "Rebalances in 5 minutes, by cause",
                "short",
                "sum by (cause) (increase(tidegate_rebalances_total[5m]))",
                "{{cause}}",
            ),
            (
                "timeseries",
                "Barriers, 95 % took at most",
                "s",
                "histogram_quantile(0.95, sum by (phase, le) (rate(tidegate_barrier_seconds_bucket[5m])))",
                "{{phase}}",
            ),
            (
                "state-timeline",
                "State",
                "none",
                f"{_ONE} (tidegate_group_state_seconds{{{_GROUP}}}) * 0 + 1",
                "{{group}}: {{state}}",
            ),
        ),
    ),
    (
        "Topics",
        (
            ("timeseries", "Produced", "cps", f"tidegate:topic_produced_records:rate2m{{{_TOPIC}}}", "{{topic}}"),
            ("timeseries", "Bytes in Redis", "bytes", f"{_ONE} (tidegate_topic_redis_bytes{{{_TOPIC}}})", "{{topic}}"),
            (
                "timeseries",
                "Not archived yet",
                "short",
                f"sum without (partition) (tidegate:partition_records:unarchived{{{_TOPIC}}})",
                "{{topic}}",
            ),
        ),
    ),
    (
        "Requests and clients",
        (
            ("timeseries", "Requests by API", "reqps", "sum by (api) (rate(tidegate_requests_total[1m]))", "{{api}}"),
            (
                "timeseries",
                "Errors by code",
                "reqps",
                "sum by (error) (rate(tidegate_request_errors_total[1m]))",
                "{{error}}",
            ),
            (
                "timeseries",
                "Requests, 99 % took at most",
                "s",
                "histogram_quantile(0.99, sum by (api, le) (rate(tidegate_request_seconds_bucket[1m])))",
                "{{api}}",
            ),
            (
                "timeseries",
                "Versions in use",
                "reqps",
                "sum by (api, version) (rate(tidegate_requests_total[5m]))",
                "{{api}} v{{version}}",
            ),
            (
                "timeseries",
                "Requests by client software",
                "reqps",
                "sum by (software) (rate(tidegate_client_requests_total[1m]))",
                "{{software}}",
            ),
            (
                "timeseries",
                "Connections by client software",
                "short",
                "sum by (software) (tidegate_client_connections)",
                "{{software}}",
            ),
            (
                "timeseries",
                "Bytes from clients",
                "Bps",
                "sum by (instance) (rate(tidegate_received_bytes_total[1m]))",
                "{{instance}}",
            ),
            (
                "timeseries",
                "Bytes to clients",
                "Bps",
                "sum by (instance) (rate(tidegate_sent_bytes_total[1m]))",
                "{{instance}}",
            ),
        ),
    ),
    (
        "Brokers",
        (
            ("timeseries", "Connections", "short", "tidegate_connections", "{{instance}} {{listener}}"),
            ("timeseries", "Event loop late by", "s", "tidegate_loop_lag_seconds", "{{instance}}"),
            (
                "timeseries",
                "CPU",
                "percentunit",
                'rate(process_cpu_seconds_total{job=~".*tidegate.*"}[1m])',
                "{{instance}}",
            ),
            ("timeseries", "Memory", "bytes", 'process_resident_memory_bytes{job=~".*tidegate.*"}', "{{instance}}"),
        ),
    ),
    (
        "Pipeline",
        (
            ("timeseries", "Rows read", "cps", "sum by (query) (rate(tidegate_pipeline_rows_total[2m]))", "{{query}}"),
            (
                "timeseries",
                "Offsets behind, worst partition",
                "short",
                "max by (query) (tidegate_pipeline_offsets_behind_latest_max)",
                "{{query}}",
            ),
            (
                "timeseries",
                "A micro-batch takes, on average",
                "s",
                "sum by (query) (increase(tidegate_pipeline_micro_batch_seconds_total[5m])) / "
                "(sum by (query) (increase(tidegate_pipeline_micro_batches_total[5m])) > 0)",
                "{{query}}",
            ),
            (
                "timeseries",
                "Seconds since the last micro-batch",
                "s",
                "time() - max by (query) (tidegate_pipeline_last_micro_batch_timestamp_seconds)",
                "{{query}}",
            ),
            (
                "timeseries",
                "Lost offsets",
                "short",
                "sum by (query) (tidegate_pipeline_lost_offsets_total)",
                "{{query}}",
            ),
            (
                "timeseries",
                "Corrupt batches",
                "short",
                "sum by (query) (tidegate_pipeline_corrupt_batches_total)",
                "{{query}}",
            ),
            (
                "timeseries",
                "Dead letters",
                "short",
                "sum by (query) (tidegate_pipeline_dead_letters_total)",
                "{{query}}",
            ),
            ("timeseries", "Queries running", "short", "sum by (query) (tidegate_pipeline_query_active)", "{{query}}"),
        ),
    ),
    (
        "Redis",
        (
            ("timeseries", "Memory", "bytes", f"{_ONE} (tidegate_redis_memory_used_bytes)", "{{server}}"),
            ("timeseries", "Keys evicted", "short", "tidegate:redis_evicted_keys", "{{server}}"),
            (
                "timeseries",
                "Scripts, 99 % took at most",
                "s",
                "histogram_quantile(0.99, sum by (script, le) (rate(tidegate_script_seconds_bucket[1m])))",
                "{{script}}",
            ),
            ("timeseries", "Scripts", "ops", "sum by (script) (rate(tidegate_script_seconds_count[1m]))", "{{script}}"),
            ("timeseries", "Commands in flight", "short", "tidegate_redis_in_flight", "{{instance}} {{link}}"),
            (
                "timeseries",
                "Changes not in a snapshot",
                "short",
                f"{_ONE} (tidegate_redis_unsaved_changes)",
                "{{server}}",
            ),
        ),
    ),
)

VARIABLES: Final = {
    "org": "label_values(tidegate_groups, org)",
    "group": 'label_values(tidegate_group_members{org=~"$org"}, group)',
    "topic": 'label_values(tidegate_topic_partitions{org=~"$org"}, topic)',
}

_COLUMNS: Final = 24
_SIZES: Final = {"stat": (4, 4), "timeseries": (8, 8), "state-timeline": (24, 8)}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana takes it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, _COLUMNS, 1)})
        x, y, height = 0, y + 1, 0
        for panel in row:
            width, tall = _SIZES[panel[0]]
            if x + width > _COLUMNS:
                x, y = 0, y + height
            panels.append(_panel(panel, _place(x, y, width, tall)))
            x, height = x + width, tall
        y += height
    for number, one in enumerate(panels, 1):
        one["id"] = number
    return {
        "uid": "tidegate",
        "title": "Tidegate",
        "tags": ["tidegate", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    kind, title, unit, query, legend = panel
    target = {"refId": "A", "expr": query, "legendFormat": legend or "__auto", "datasource": _SOURCE}
    return {
        "type": kind,
        "title": title,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [target],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    asked = [
        {
            "name": name,
            "type": "query",
            "query": query,
            "definition": query,
            "datasource": _SOURCE,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, query in VARIABLES.items()
    ]
    return [source, *asked]


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"
