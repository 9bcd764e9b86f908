"""Topics read through Redis Cluster and Sentinel, and with passwords that no option holds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.logs import batch_bytes
from tests.support.many_servers import cluster, sentinel, wait_until
from tests.support.topic_reads import access_to, archive_up_to, offsets_of
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.options import parse_options

PARTITIONS = 8


def fill(client: Any) -> list[tuple[int, int]]:
    """A topic whose entries hold two batches each; returns its (partition, offset)."""
    topic = WrittenTopic(client, "orders", PARTITIONS)
    for partition in range(PARTITIONS):
        for _ in range(3):
            topic.append(batch_bytes(2), batch_bytes(3), partition=partition)
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(15)]


def test_cluster_of_three_nodes(tmp_path: Path) -> None:
    with cluster() as url:
        client = connect(url)
        records = fill(client)
        keys = WrittenTopic(client, "cold").keys()
        slots = {client.keyslot(key) for key in (keys.log, keys.meta, keys.segments, keys.archive, keys.times)}
        assert len(slots) == 1
        spread = WrittenTopic(client, "spread", PARTITIONS)
        nodes = {client.get_node_from_key(spread.keys(partition).log).port for partition in range(PARTITIONS)}
        assert len(nodes) > 1, "partitions of one topic are on several nodes"

        access = access_to(url, subscribe="orders", minPartitions="20")
        ranges = plan_ranges(access)
        assert len(ranges) >= 20
        assert offsets_of(access, ranges) == records

        cold = WrittenTopic(client, "cold")
        archive_up_to(client, tmp_path, cold, [4, 4])
        archive = access_to(url, subscribe="cold", tiers="archive", archive_path=str(tmp_path))
        assert offsets_of(archive, plan_ranges(archive)) == [(0, offset) for offset in range(8)]
        client.close()


def test_fail_over_by_sentinel_while_a_range_is_read(tmp_path: Path) -> None:
    with sentinel(tmp_path) as (url, primary):
        client = connect(url)
        records = fill(client)
        assert client.wait(1, 10_000) == 1
        access = access_to(url, subscribe="orders", redis_retry="60")
        ranges = plan_ranges(access)
        assert offsets_of(access, ranges[:1]) == records[:15]

        primary.kill()

        assert offsets_of(access, ranges) == records
        wait_until(lambda: bool(client.ping()))
        assert client.info("replication")["role"] == "master"
        assert client.connection_pool.get_master_address()[1] != primary.port
        client.close()


def test_password_is_read_where_the_option_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = ValkeyServer()
    try:
        with closing(connect(server.url)) as unguarded:
            unguarded.config_set("requirepass", "hush")
        client = connect(f"redis://:hush@127.0.0.1:{server.port}/0")
        records = fill(client)
        client.close()
        file = tmp_path / "password"
        file.write_text("hush\n")
        monkeypatch.setenv("PASSWORD_OF_REDIS", "hush")

        def access_with(name: str) -> Access:
            options = {"redis.url": server.url, "subscribe": "orders", "redis.passwordVariable": name}
            return Access(parse_options(options))

        for name in ("PASSWORD_OF_REDIS", str(file)):
            access = access_with(name)
            assert offsets_of(access, plan_ranges(access)) == records
            assert "hush" not in repr(access.options)

        for name, reported_text in (
            ("NOWHERE", "variable NOWHERE, which is not set"),
            (str(tmp_path / "no"), "No such file"),
        ):
            with pytest.raises(UsageError, match=reported_text):
                plan_ranges(access_with(name))

        monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", f"redis://:hush@127.0.0.1:{server.port}/0")
        expired = Access(parse_options({"subscribe": "orders"}))
        assert expired.options.url == ""
        assert offsets_of(expired, plan_ranges(expired)) == records

        with pytest.raises(UsageError, match="Redis refuses the login"):
            plan_ranges(access_to(server.url, subscribe="orders"))
    finally:
        server.stop()
