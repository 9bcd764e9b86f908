"""docs/metrics.md, from what is declared and from the alerts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.telemetry import declared, declared_cluster, declared_foreign
from tidegate.telemetry.declared import Declared
from tidegate.telemetry.software import KNOWN

_ALERTS: Final = Path(__file__).parent / "rules" / "alerts.yml"

_HEAD: Final = """\
# Metrics

Made from the code by `make docs`. Every broker answers `GET /metrics` on its admin port, in Prometheus' text format or
OpenMetrics. All brokers are scraped; a scrape reads nothing from Redis. The names of a counter's samples end in
`_total`, those of a histogram in `_bucket`, `_sum` and `_count`. Beside these there are `process_*` (CPU, memory, open
files), as every client of Prometheus has them.

## Of each broker

Labels come from closed sets: APIs, the versions served, Kafka's error codes, scripts of the package. Clients are told
apart by the software that they say they are (KIP-511): {software}; any other is `other`, and
`unknown` did not say.

{broker}

## Of the cluster

One broker at a time tells about groups, topics and Redis: the one that takes the samples of lag, every
`lag_sample_interval_ms` (0: nobody does). It is a duty by lease: `tidegate_cluster_exported` is 1 there.
What it tells is of its last whole round; `tidegate_cluster_sampled_timestamp_seconds` says of when.

**Hand-over.** When that broker goes, the next one takes the duty within a quarter of `lag_sample_interval_ms` of its
end (a broker that was killed: of one interval) and is silent for `metrics_handover_ms`, which is to be the scraper's
interval: so no scraper finds a series at two brokers. In between it finds none for about that long. Instance labels
differ, so aggregate: `max without (instance, pod) (...)`, as the recording rules do.

**Bounds.** Groups and topics are labels here. At most `metrics_groups_max` groups and `metrics_partitions_max`
partitions of groups, and as many of topics, are told, in order of their names; `tidegate_series_left_out` counts the
others. `tidegate_groups` counts all of them.

**Lag** is what is left to read: offsets from the committed one to the end of the log. Markers of transactions have
offsets, so they count, as in Kafka. Offsets that retention removed do not: lag starts at the log's start.
Partitions for which a group has committed nothing have no lag; `tidegate_group_uncommitted_partitions` counts
those that its members own. Of a deleted topic or group nothing is told from the next round on, and what was committed
for a topic that was made again since does not count for the new one.

{cluster}

## Under other exporters' names

`metrics_exporter_names` (default `kafka_exporter,kminion`; empty: none) has the same told under the names, labels and
meanings of [kafka_exporter](https://github.com/danielqsj/kafka_exporter) and
[kminion](https://github.com/redpanda-data/kminion), so that their dashboards (Grafana 7589; 14012, 14013, 14014),
alerts and KEDA's Prometheus scaler go on as they are. They know no organisations: groups and topics of another one than
`default` have a further label `org`. Two things differ, on purpose: lag starts at the log's start here, where
kafka_exporter also counts what retention removed; and there is no `kminion_kafka_consumer_group_offset_commits_total`,
which kminion has only where it reads `__consumer_offsets`.

{kafka_exporter}

{kminion}

## Prometheus and Grafana

`observability/` has all of it: `prometheus.yml`, recording and alert rules in `rules/`, a dashboard and provisioning
for Grafana. The chart has the same rules and dashboard (`metrics.prometheusRule`, `metrics.dashboards`).
`make test SUITE=rules` checks them with promtool, and every query of rules and dashboard with a real Prometheus on a
live cluster; it takes promtool and Prometheus from the PATH or out of Debian's package.

A [KEDA](https://keda.sh) trigger by lag, over Prometheus:

```yaml
triggers:
  - type: prometheus
    metadata:
      serverAddress: http://prometheus:9090
      query: sum(tidegate:group_topic_lag_records{{group="billing",topic="orders"}})
      threshold: "1000"
```

KEDA's own `apache-kafka` and `kafka` triggers ask a broker, and work as with Kafka: they also count what retention
removed above the committed offset, which the query above does not.

## Alerts

A runbook for each: [operations](operations.md#runbooks).

{runbooks}
"""


def table(metrics: Iterable[Declared]) -> str:
    """A table of Markdown."""
    rows = [
        f"| `{one.exposed}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in metrics
    ]
    return "\n".join(("| Name | Kind | Labels | Tells |", "|---|---|---|---|", *rows))


def page() -> str:
    """The page."""
    return _HEAD.format(
        software=", ".join(f"`{name}`" for name in KNOWN),
        broker=table(declared.BROKER),
        cluster=table(declared_cluster.CLUSTER),
        kafka_exporter=table(declared_foreign.KAFKA_EXPORTER),
        kminion=table(declared_foreign.KMINION),
        runbooks=_runbooks(),
    )


def alerts() -> list[dict[str, Any]]:
    """Every alert, as rules/alerts.yml has it."""
    return [rule for group in yaml.safe_load(_ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]


def _runbooks() -> str:
    return "\n\n".join(
        f"### {rule['alert']}\n\n{_for_people(rule['annotations']['summary'])} *({rule['labels']['severity']}"
        f"{', for ' + rule['for'] if 'for' in rule else ''})*\n\n{rule['annotations']['description']}\n\n"
        f"```\n{rule['expr']}\n```"
        for rule in alerts()
    )


def _for_people(text: str) -> str:
    """Without what Prometheus fills in."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", text)
    return re.sub(r"\{\{ \$value[^}]*\}\}", "*n*", text)
