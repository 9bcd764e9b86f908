"""Values as columns in Spark: by a schema registry and as plain JSON, in queries and as the job `decode`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.support.schema_registry import SchemaRegistry, framed
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.build import NewRecord, build_batch
from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.jobs.decode import DecodeJob
from tidegate_pipeline.jobs.job import JobContext
from tidegate_pipeline.jobs.progress import Display
from tidegate_pipeline.jobs.running import Run, run_all
from tidegate_pipeline.jobs.value_columns import Values
from tidegate_pipeline.redis_access import connect, with_whole_entries
from tidegate_pipeline.session import register
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.tables.compaction import compact
from tidegate_pipeline.tables.folder import Form
from tidegate_pipeline.tables.iceberg_table import IcebergPlan
from tidegate_pipeline.values import decoded, inferred_schema, json_decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)

ICEBERG_TABLE = "lake.shop.orders"
ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"]}],
}  # fmt: skip
NEWER_ORDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}


def avro(schema_id: int, schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return framed(schema_id, stream.getvalue())


class Bench:
    """A topic, a registry, and jobs that read the one by the other."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, registry: SchemaRegistry) -> None:
        self.spark, self.folder, self.registry = spark, folder, registry
        self.client = with_whole_entries(connect(url))
        self.client.flushall()
        replid = self.client.info("replication")["master_replid"]
        self.client.hset(ClusterKeys("tidegate").info, mapping={"master_replid": replid, "incarnation": 1})
        self.topic = WrittenTopic(self.client, "orders")
        self.copy: WrittenTopic | None = None
        self.url = url

    def append(self, *values: bytes | None) -> None:
        self.topic.append(build_batch([NewRecord(value, b"key", TIMESTAMP_MS) for value in values]))

    def read(self) -> DataFrame:
        reader = self.spark.read.format("tidegate").option("redis.url", self.url)
        return reader.option("subscribe", "orders").load()

    def run(
        self, form: Form, values: Values, on_undecodable: str = "dead-letter", limit: int = 10, topics: str = "orders",
        table: str | None = None,
    ) -> Run:  # fmt: skip
        settings = {
            "redis": {"url": self.url, "retry_s": 2},
            "archive": {"path": str(self.folder / "archive")},
            "values": {"registry": self.registry.url, "on_undecodable": on_undecodable, "limit": limit},
        }
        context = JobContext(
            register(self.spark.newSession()), PipelineSettings.model_validate(settings), self.client,
            self.folder / "checkpoint", {"availableNow": True},
        )  # fmt: skip
        table = ICEBERG_TABLE if form == "iceberg" else table
        run = Run(DecodeJob(topics, form, table, values=values), context)
        run.job.check(context)
        run_all([run], Display(quiet=True))
        return run

    def append_copy(self, value: bytes) -> None:
        """To a second topic, `refunds`."""
        if self.copy is None:
            self.copy = WrittenTopic(self.client, "refunds")
        self.copy.append(build_batch([NewRecord(value, b"key", TIMESTAMP_MS)]))

    def dead_letters(self) -> list[tuple[int, bytes, str]]:
        folder = self.folder / "archive" / "quarantine" / "values"
        if not folder.exists():
            return []
        rows = ds.dataset(str(folder), format="parquet").to_table().sort_by("offset").to_pylist()
        ids = {topic.name: topic.topic_id for topic in (self.topic, self.copy) if topic is not None}
        assert all(row["topic_id"] == ids[row["topic"]] and row["key"] == b"key" for row in rows)
        return [(row["offset"], row["value"], row["reason"]) for row in rows]


@pytest.fixture
def bench(spark: SparkSession, valkey: ValkeyServer, tmp_path: Path) -> Iterator[Bench]:
    with SchemaRegistry() as registry:
        opened = Bench(spark, valkey.url, tmp_path, registry)
        yield opened
        opened.client.close()
    if IcebergPlan(ICEBERG_TABLE).table() is not None:  # the catalog is that of all tests
        IcebergPlan(ICEBERG_TABLE)._catalog.drop_table(ICEBERG_TABLE.partition(".")[2])


def test_decoded_columns_of_a_query(bench: Bench) -> None:
    schema_id = bench.registry.register("orders-value", ORDER)
    bench.append(avro(schema_id, ORDER, {"id": 1, "city": "Ulm"}), None, b"broken")
    rows = decoded(bench.read(), registry=bench.registry.url, subject="orders-value", on_undecodable="column")
    assert rows.select("value.*").dtypes == [("id", "bigint"), ("city", "string")]
    found = [row.asDict(recursive=True) for row in rows.orderBy("offset").collect()]
    assert [row["value"] for row in found] == [{"id": 1, "city": "Ulm"}, None, None]
    assert [row["value_error"] for row in found[:2]] == [None, None]
    assert found[2]["value_error"]["bytes"] == b"broken"
    with pytest.raises(Exception, match=r"orders-0 offset 2 cannot be decoded: no schema id: it begins with 62"):
        decoded(bench.read(), registry=bench.registry.url, subject="orders-value").collect()


TRAILING = (b'{"id": 7} x', b'{"id": 7}{"id": 8}', b'{"id": 7},{"id": 8}', b'{"id": 7}}', b'{"id": 7}]', b'{"id": 7},')


def test_json_decoded_columns_of_a_query(bench: Bench) -> None:
    bench.append(
        b'{"id": 1, "at": "2026-03-01T00:00:00Z"}', None, b'{"id": "x"}', b"[", b'{"other": 2}', b"null", *TRAILING
    )
    schema = inferred_schema(bench.read())
    assert sorted(schema.names) == ["at", "id", "other"]
    rows = json_decoded(bench.read(), "id BIGINT, at TIMESTAMP", on_undecodable="column").orderBy("offset").collect()
    assert [row.value and row.value.id for row in rows] == [1, *[None] * (5 + len(TRAILING))]
    assert rows[0].value.at.year == 2026
    wrong = [row.value_error and bytes(row.value_error.bytes) for row in rows]
    assert wrong == [None, None, b'{"id": "x"}', b"[", None, b"null", *TRAILING]
    with pytest.raises(Exception, match="offset 2 cannot be decoded: not JSON of the given schema"):
        json_decoded(bench.read(), "id BIGINT").write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_decode_job_evolves_and_puts_dead_letters_aside(bench: Bench, form: Form) -> None:
    first_id = bench.registry.register("orders-value", ORDER)
    good = [avro(first_id, ORDER, {"id": number, "city": None}) for number in range(3)]
    bench.append(*good, b"broken", good[0][:-1])
    run = bench.run(form, Values("registry"))
    summary = run.summary()
    assert (summary["status"], summary["rows"], summary["dead_letters"]) == ("done", 5, 2), run.error
    assert [(offset, value) for offset, value, _ in bench.dead_letters()] == [(3, b"broken"), (4, good[0][:-1])]
    assert "EOFError" in bench.dead_letters()[1][2]

    newer_id = bench.registry.register("orders-value", NEWER_ORDER)
    bench.append(avro(newer_id, NEWER_ORDER, {"id": 9, "city": "Ulm", "currency": "USD"}), good[0], None)
    run = bench.run(form, Values("registry"))
    assert (run.summary()["status"], run.summary()["dead_letters"]) == ("done", 0), run.error
    rows = table_values(bench, form)
    assert rows[:3] == [(number, {"id": number, "city": None, "currency": None}) for number in range(3)]
    assert rows[3:] == [
        (5, {"id": 9, "city": "Ulm", "currency": "USD"}),
        (6, {"id": 0, "city": None, "currency": "EUR"}),
        (7, None),
    ]


def table_values(bench: Bench, form: Form) -> Sequence[tuple[int, Any]]:
    if form == "iceberg":
        opened = IcebergPlan(ICEBERG_TABLE).table()
        assert opened is not None
        found = opened.scan().to_arrow().sort_by("offset").to_pylist()
        return [(row["offset"], row["value"]) for row in found]
    path = str(bench.folder / "archive" / "table" / "orders")
    copied = compact(path, None, str(bench.folder / "archive"), 0)
    table = DeltaTable(path).to_pyarrow_table() if form == "delta" else ds.dataset(copied["copy"]).to_table()
    rows = table.sort_by("offset").to_pylist()
    return [(row["offset"], row["value"]) for row in rows]


def test_decode_job_fails_at_undecodable_values(bench: Bench) -> None:
    bench.append(b'{"id": 1}', b"broken", b"{")
    values = Values("json", schema="id BIGINT")
    failed = bench.run("parquet", values, on_undecodable="fail").summary()
    assert (failed["status"], failed["exit_status"]) == ("failed", 4)
    assert "orders-0 offset 1 cannot be decoded" in failed["error"]
    limited = bench.run("parquet", values, limit=1).summary()
    assert limited["exit_status"] == 4 and "values.limit is 1" in limited["error"]
    assert bench.dead_letters() == []

    done = bench.run("parquet", Values("json")).summary()
    assert (done["status"], done["dead_letters"]) == ("done", 2)
    assert [offset for offset, _, _ in bench.dead_letters()] == [1, 2]


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_decode_job_of_json_adds_new_fields_and_counts_unknown_ones(bench: Bench, form: Form) -> None:
    bench.append(b'{"id": 1, "at": {"x": 1}}', b'{"id": 2} ?')
    first = bench.run(form, Values("json")).summary()
    assert (first["status"], first["dead_letters"], "records_with_unknown_fields" in first) == ("done", 1, False)

    bench.append(b'{"id": 3, "city": "Ulm", "at": {"x": 2, "y": 3}}', b'{"id": "4"}')
    second = bench.run(form, Values("json")).summary()
    assert (second["status"], second["dead_letters"]) == ("done", 1), second
    assert table_values(bench, form) == [
        (0, {"id": 1, "at": {"x": 1, "y": None}, "city": None}),
        (2, {"id": 3, "at": {"x": 2, "y": 3}, "city": "Ulm"}),
    ]

    bench.append(b'{"id": 5, "more": 1}', b'{"id": 6}')
    third = bench.run(form, Values("json", schema="id BIGINT, at STRUCT<x: BIGINT>")).summary()
    assert (third["dead_letters"], third["records_with_unknown_fields"]) == (0, 1)


def test_decode_job_of_several_topics_by_one_schema(bench: Bench) -> None:
    schema_id = bench.registry.register("shop-value", ORDER)
    bench.append(avro(schema_id, ORDER, {"id": 1, "city": "Ulm"}), b"broken")
    bench.append_copy(avro(schema_id, ORDER, {"id": 2, "city": None}))
    bench.append_copy(b"wrong")
    table = bench.folder / "shop"
    table.mkdir()
    done = bench.run("delta", Values("registry", "shop-value"), topics="orders,refunds", table=str(table)).summary()

    assert (done["status"], done["dead_letters"]) == ("done", 2)
    rows = DeltaTable(table).to_pyarrow_table(columns=["topic", "offset", "value"]).to_pylist()
    assert sorted((row["topic"], row["offset"], row["value"]["id"]) for row in rows) == [
        ("orders", 0, 1), ("refunds", 0, 2),
    ]  # fmt: skip
    assert sorted(value for _, value, _ in bench.dead_letters()) == [b"broken", b"wrong"]
