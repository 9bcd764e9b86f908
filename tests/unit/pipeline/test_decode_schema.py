"""The schemas are those of Spark's Kafka connector, and Arrow's form of them is the one that Spark expects."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate_pipeline.decode import schema


@pytest.mark.parametrize(
    ("spark_type", "arrow"),
    [
        (schema.decoded_schema(), schema.DECODED_ARROW),
        (schema.decoded_schema(include_headers=False), schema.DECODED_ARROW_WITHOUT_HEADERS),
        (schema.raw_schema(), schema.RAW_ARROW),
    ],
)
def test_spark_makes_the_same_arrow_schema_of_its_type(spark_type: StructType, arrow: pa.Schema) -> None:
    assert to_arrow_schema(spark_type, timezone="UTC").equals(arrow, check_metadata=True)
    assert all(field.nullable for field in arrow)


def test_decoded_columns_are_the_connectors() -> None:
    assert schema.decoded_schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert schema.decoded_schema(include_headers=False).names == schema.decoded_schema().names[:-1]
    assert schema.raw_schema().simpleString() == (
        "struct<topic:string,partition:int,base_offset:bigint,last_offset:bigint,records:int,first_timestamp:bigint,"
        "max_timestamp:bigint,attributes:int,producer_id:bigint,producer_epoch:int,base_sequence:int,crc:bigint,"
        "batch:binary>"
    )
