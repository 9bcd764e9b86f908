"""Topics in SQL, in a session that nobody prepared: Spark finds the sources by the packages `pyspark_tidegate…`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_sql_table_and_view_without_register(spark_process: SparkSession, client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders", 2).fill([3, 2])
    session = spark_process.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    options = f"OPTIONS ('redis.url' '{valkey.url}', subscribe 'orders', startingOffsets 'earliest')"
    session.sql(f"CREATE TABLE orders_table USING tidegate {options}")
    try:
        session.sql(f"CREATE TEMPORARY VIEW orders_view USING tidegate {options}")

        counts = "SELECT count(*) n FROM orders_table UNION ALL SELECT count(*) FROM orders_view WHERE offset > 2"
        assert [row.n for row in session.sql(counts).collect()] == [5, 2]
        some = session.read.option("endingOffsets", '{"orders":{"0":4,"1":0}}').table("orders_table")
        assert some.count() == 4
    finally:
        session.sql("DROP TABLE orders_table")


def test_insert_into_a_sql_table_names_the_way_to_write(
    spark_process: SparkSession, client: Any, valkey: ValkeyServer
) -> None:
    WrittenTopic(client, "orders").fill([1])
    session = spark_process.newSession()
    session.sql(f"CREATE TABLE orders_read USING tidegate OPTIONS ('redis.url' '{valkey.url}', subscribe 'orders')")
    try:
        for insert in (
            "INSERT INTO orders_read (key, value) VALUES (X'00', X'01')",
            "INSERT INTO orders_read SELECT * FROM orders_read",
        ):
            with pytest.raises(PySparkException, match=r"a SQL table of tidegate is read only: .*df\.write\.format"):
                session.sql(insert).collect()
        rows = session.table("orders_read").select("key", "value")
        with pytest.raises(PySparkException, match="column topic, and there is no option topic"):
            rows.write.format("tidegate").mode("append").option("kafka.bootstrap.servers", "127.0.0.1:1").save()
    finally:
        session.sql("DROP TABLE orders_read")


def test_error_of_a_source_is_its_one_line(spark_process: SparkSession, client: Any, valkey: ValkeyServer) -> None:
    WrittenTopic(client, "orders").fill([1])
    topics = spark_process.newSession().read.format("tidegate").option("redis.url", valkey.url)

    for failing, expected in (
        (lambda: topics.options(subscribe="orders", mode="rows").load(), "UsageError: options of tidegate: mode is "),
        (lambda: topics.options(subscribe="no-orders", mode="raw").load().collect(), "UsageError: no such topic in "),
    ):
        with pytest.raises(PySparkException) as raised:
            failing()
        lines = [line for line in str(raised.value).splitlines() if "SQLSTATE" not in line and line.strip()]
        assert len(lines) == 1, "no traceback"
        assert expected in lines[0]
