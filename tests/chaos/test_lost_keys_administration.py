"""The keys of quotas, configs, audits and samples deleted, of another type, or emptied, under traffic.

After each: records pass, and what an administrator sets again is accepted.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.chaos import test_lost_keys_share, test_lost_keys_transactions
from tests.chaos.test_lost_keys import (
    DELETED,
    ELSEWHERE,
    EMPTIED,
    HEALED_S,
    KEYS_OF_CONSUMER_GROUPS,
    KEYS_OF_RECORD_TOPICS,
    NO_ROW,
    ROWS,
    WRONG_TYPE,
    Traffic,
    lose_key,
)
from tidegate.cli.main import command_line

TOKEN: Final = "an operator's token"
QUOTAS: Final = (
    ("client-id=rdkafka", "producer_byte_rate", 1_000_000),
    ("org", "connections_max", 1_000),
    ("org", "groups_max", 1_000),
)
KEYS: Final = (
    "acls", "quotas", "quota-bucket", "org-connections", "org-groups", "resource-configs", "configured", "configs",
    "audit", "audit-events", "lag", "usage", "proof",
)  # fmt: skip
STREAMS: Final = ("audit", "audit-events", "lag", "usage")
_numbers = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "TIDEGATE_LOG_FORMAT": "json",
        "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "200",
        "TIDEGATE_AUDIT_STREAM_BYTES": "1000000",
        "TIDEGATE_ADMIN_OPERATOR_TOKEN": TOKEN,
        "TIDEGATE_DURABILITY": "fsynced",
        "TIDEGATE_ACL_ENABLED": "true",
        "TIDEGATE_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true",
    }
    with Cluster(brokers=2, settings=settings, server_options=("--appendonly", "yes")) as running:
        yield running


def administer(traffic: Traffic) -> None:
    """Set quotas, access rules and configs of a group and of a broker, and create a topic by admin HTTP."""
    cluster = traffic.cluster
    commands = [["quota", "set", entity, quota, str(value + next(_numbers))] for entity, quota, value in QUOTAS]
    commands.append(["acl", "add", "User:ANONYMOUS", "READ", f"topic:{traffic.name}-{next(_numbers)}"])
    for command in commands:
        done = CliRunner().invoke(command_line, [*command, "--redis-url", cluster.redis_url, "--yes"])
        assert not done.exit_code, done.output
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for kind, name, config, value in (
        (ResourceType.GROUP, traffic.name, "consumer.session.timeout.ms", "50000"),
        (ResourceType.BROKER, "1", "log.retention.ms", "86400000"),
    ):
        entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(HEALED_S)
    request = urllib.request.Request(
        f"http://127.0.0.1:{cluster.brokers[0].admin_port}/api/v1/topics",
        json.dumps({"topic": f"{traffic.name}-{time.monotonic_ns()}", "partition_count": 1}).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=HEALED_S) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, DELETED) for name in KEYS),
        *(pytest.param(name, WRONG_TYPE, marks=pytest.mark.slow) for name in KEYS),
        *(pytest.param(name, EMPTIED, marks=pytest.mark.slow) for name in STREAMS),  # no empty hash exists in Redis
    ],
)
def test_key_lost_of_administration_is_healed(cluster: Cluster, name: str, how: str) -> None:
    lose_key(cluster, name, how, "classic", administer=administer)


def test_every_kind_of_key_has_a_row() -> None:
    elsewhere = {*KEYS, *test_lost_keys_share.KEYS, *test_lost_keys_transactions.KEYS}
    elsewhere |= {*KEYS_OF_CONSUMER_GROUPS, *KEYS_OF_RECORD_TOPICS}
    assert elsewhere >= ELSEWHERE
    assert not NO_ROW.keys() & (elsewhere | {name for name, _ in ROWS})
