"""Values in Confluent's wire format: schemas of each kind as Arrow types, records of all their types, broken ones."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from tests.support.schema_registry import SchemaRegistry, framed
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.values.codec import Codec, Evolution
from tidegate_pipeline.values.registry import Registry
from tidegate_pipeline.values.undecodable import Undecodable

FIELD = descriptor_pb2.FieldDescriptorProto


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as opened:
        yield opened


def codec_of(registry: SchemaRegistry, subject: str, evolution: Evolution = "reader", message: str = "") -> Codec:
    client = Registry(registry.url)
    made = Codec(client, client.of_subject(subject), message, evolution)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def through_arrow(codec: Codec, *values: bytes) -> list[Any]:
    return pa.array([codec.decode(value) for value in values], codec.arrow_type()).to_pylist()  # type: ignore[no-any-return]


def avro(schema_id: int, schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return framed(schema_id, stream.getvalue())


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": [{"name": n, "type": t} for n, t in fields]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def test_avro_every_type(registry: SchemaRegistry) -> None:
    when = dt.datetime(2026, 3, 1, 12, 30, 15, 250_000, dt.UTC)
    line = record(("sku", "string"), ("count", "int"), name="Line")
    schema = record(
        ("id", "long"), ("name", ["null", "string"]), ("ok", "boolean"), ("ratio", "float"), ("price", "double"),
        ("raw", "bytes"), ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
        ("state", {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}), ("before", "State"),
        ("lines", {"type": "array", "items": line}), ("tags", {"type": "map", "values": ["null", "int"]}),
        ("day", logical("int", "date")), ("at", logical("long", "timestamp-millis")),
        ("local", logical("long", "local-timestamp-micros")), ("clock", logical("int", "time-millis")),
        ("amount", logical("bytes", "decimal", precision=10, scale=2)), ("uuid", logical("string", "uuid")),
        ("number", ["null", "int", "long"]), ("mixed", ["int", "string", line["name"]]), ("nothing", "null"),
    )  # fmt: skip
    value = {
        "id": 1 << 40, "name": None, "ok": True, "ratio": 0.5, "price": 0.1, "raw": b"\0\xff", "hash": b"ab",
        "state": "NEW", "before": "DONE", "lines": [{"sku": "a", "count": 2}], "tags": {"x": 1, "y": None},
        "day": dt.date(2026, 3, 1), "at": when, "local": when.replace(tzinfo=None), "clock": dt.time(1, 0, 0, 5_000),
        "amount": Decimal("12.30"), "uuid": "3b241101-e2bb-4255-8caf-4136c566a962", "number": 1 << 35,
        "mixed": {"sku": "b", "count": 1}, "nothing": None,
    }  # fmt: skip
    schema_id = registry.register("orders-value", schema)
    codec = codec_of(registry, "orders-value")

    expected = {**value, "clock": 3_600_005, "tags": [("x", 1), ("y", None)], "mixed": '{"sku": "b", "count": 1}'}
    assert through_arrow(codec, avro(schema_id, schema, value)) == [expected]
    types = {field.name: str(field.type) for field in codec.arrow_type()}
    assert types["at"] == "timestamp[us, tz=UTC]" and types["local"] == "timestamp[us]"
    assert types["amount"] == "decimal128(10, 2)" and types["number"] == "int64"


def test_avro_older_records_have_defaults_of_the_latest_schema(registry: SchemaRegistry) -> None:
    first = record(("id", "int"), ("removed", "string"))
    second = record(("id", "long"))
    second["fields"].append({"name": "currency", "type": "string", "default": "EUR"})
    ids = [registry.register("orders-value", schema) for schema in (first, second)]
    values = [avro(ids[0], first, {"id": 1, "removed": "x"}), avro(ids[1], second, {"id": 2, "currency": "USD"})]

    assert through_arrow(codec_of(registry, "orders-value"), *values) == [
        {"id": 1, "currency": "EUR"},
        {"id": 2, "currency": "USD"},
    ]
    assert through_arrow(codec_of(registry, "orders-value", "writer"), *values) == [
        {"id": 1, "currency": None},
        {"id": 2, "currency": "USD"},
    ]


def test_avro_references_and_recursion(registry: SchemaRegistry) -> None:
    address = record(("city", "string"), name="Address")
    registry.register("address", address)
    schema = record(("to", "shop.Address"))
    schema_id = registry.register("orders-value", schema, references=[("shop.Address", "address", 1)])
    written = record(("to", address))
    value = {"to": {"city": "Ulm"}}
    assert through_arrow(codec_of(registry, "orders-value"), avro(schema_id, written, value)) == [value]

    registry.register("tree-value", record(("next", ["null", "shop.Order"])))
    with pytest.raises(UsageError, match=r"shop\.Order contains itself"):
        codec_of(registry, "tree-value").arrow_type()


def order_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "DONE")):
        state.value.add(name=name, number=number)
    file.message_type.add(name="Other").field.add(name="x", number=1, type=FIELD.TYPE_INT32, label=1)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=1)
    tags = order.nested_type.add(name="TagsEntry")
    tags.options.map_entry = True
    tags.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=1)
    tags.field.add(name="value", number=2, type=FIELD.TYPE_MESSAGE, type_name=".shop.Order.Line", label=1)
    for number, (name, kind, label, type_name) in enumerate(
        [
            ("id", FIELD.TYPE_INT64, 1, ""),
            ("big", FIELD.TYPE_UINT64, 1, ""),
            ("raw", FIELD.TYPE_BYTES, 1, ""),
            ("state", FIELD.TYPE_ENUM, 1, ".shop.State"),
            ("lines", FIELD.TYPE_MESSAGE, 3, ".shop.Order.Line"),
            ("tags", FIELD.TYPE_MESSAGE, 3, ".shop.Order.TagsEntry"),
            ("at", FIELD.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("note", FIELD.TYPE_MESSAGE, 1, ".google.protobuf.StringValue"),
            ("absent", FIELD.TYPE_MESSAGE, 1, ".shop.Order.Line"),
        ],
        start=1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    return file


def order_message(file: descriptor_pb2.FileDescriptorProto, **fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message: Any = made(**{name: one for name, one in fields.items() if name != "tags"})
    for key, sku in fields.get("tags", {}).items():
        message.tags[key].sku = sku
    return message.SerializeToString()  # type: ignore[no-any-return]


def test_protobuf_every_type_and_message_indexes(registry: SchemaRegistry) -> None:
    file = order_file()
    schema_id = registry.register("orders-value", file.SerializeToString(), "PROTOBUF")
    codec = codec_of(registry, "orders-value", message="shop.Order")
    data = order_message(
        file, id=7, big=(1 << 64) - 1, raw=b"\xff", state=1, lines=[{"sku": "a"}], tags={"x": "b"},
        at={"seconds": 1, "nanos": 5_000}, note={"value": "hello"},
    )  # fmt: skip

    assert through_arrow(codec, framed(schema_id, b"\x02\x02" + data)) == [
        {
            "id": 7, "big": Decimal((1 << 64) - 1), "raw": b"\xff", "state": "DONE", "lines": [{"sku": "a"}],
            "tags": [("x", {"sku": "b"})], "at": dt.datetime(1970, 1, 1, 0, 0, 1, 5, dt.UTC), "note": "hello",
            "absent": None,
        }
    ]  # fmt: skip
    with pytest.raises(Undecodable, match=r"the message is shop\.Other, not shop\.Order"):
        codec.decode(framed(schema_id, b"\x00\x08\x01"))
    assert through_arrow(codec_of(registry, "orders-value"), framed(schema_id, b"\x00\x08\x05")) == [{"x": 5}]
    with pytest.raises(UsageError, match=r"no message shop\.Invoice; it has shop\.Order"):
        codec_of(registry, "orders-value", message="shop.Invoice").arrow_type()


def test_protobuf_newer_fields_of_the_latest_schema(registry: SchemaRegistry) -> None:
    older, newer = order_file(), order_file()
    newer.message_type[1].field.add(name="currency", number=20, type=FIELD.TYPE_STRING, label=1)
    ids = [registry.register("orders-value", file.SerializeToString(), "PROTOBUF") for file in (older, newer)]
    codec = codec_of(registry, "orders-value", message="shop.Order")
    values = [
        framed(ids[0], b"\x02\x02" + order_message(older, id=1)),
        framed(ids[1], b"\x02\x02" + order_message(newer, id=2, currency="EUR")),
    ]
    assert [(row["id"], row["currency"]) for row in through_arrow(codec, *values)] == [(1, ""), (2, "EUR")]


def test_json_schema_types_and_violations(registry: SchemaRegistry) -> None:
    registry.register("address", {"type": "object", "properties": {"city": {"type": "string"}}}, "JSON")
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"}, "price": {"type": ["number", "null"]}, "state": {"enum": ["NEW", "DONE"]},
            "to": {"$ref": "address.json"}, "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
            "tags": {"type": "object", "additionalProperties": {"type": "boolean"}}, "any": {},
            "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["id"],
        "definitions": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    }  # fmt: skip
    schema_id = registry.register("orders-value", schema, "JSON", references=[("address.json", "address", 1)])
    codec = codec_of(registry, "orders-value")
    value = {
        "id": 1, "price": 2, "state": "NEW", "to": {"city": "Ulm"}, "lines": [{"sku": "a"}], "tags": {"x": True},
        "any": [1, "x"], "note": None, "unknown": 1,
    }  # fmt: skip

    assert through_arrow(codec, framed(schema_id, json.dumps(value).encode())) == [
        {
            "id": 1, "price": 2.0, "state": "NEW", "to": {"city": "Ulm"}, "lines": [{"sku": "a"}],
            "tags": [("x", True)], "any": '[1, "x"]', "note": None,
        }
    ]  # fmt: skip
    for wrong, reason in ((b"{", "not JSON"), (b'{"id": "x"}', r"\$\.id: 'x' is not of type"), (b"{}", "required")):
        with pytest.raises(Undecodable, match=reason):
            codec.decode(framed(schema_id, wrong))


def test_broken_bytes_are_undecodable_with_their_reason(registry: SchemaRegistry) -> None:
    schema = record(("id", "long"), ("name", "string"))
    schema_id = registry.register("orders-value", schema)
    other_id = registry.register("others-value", {"type": "object"}, "JSON")
    codec = codec_of(registry, "orders-value")
    good = avro(schema_id, schema, {"id": 1, "name": "ann"})

    for data, reason in (
        (b"", "begins with nothing"),
        (b'{"id":1}', "begins with 7b"),
        (good[:-1], "EOFError"),
        (good + b"x", "1 bytes after the record"),
        (framed(9_999, b""), "schema id 9999 is not in the registry"),
        (framed(other_id, b"{}"), "its schema is JSON, the reader's AVRO"),
    ):
        with pytest.raises(Undecodable, match=reason):
            codec.decode(data)
        with pytest.raises(Undecodable):
            codec.decode(data)
    assert registry.requests["/schemas/ids/9999"] == 1
    assert registry.requests[f"/schemas/ids/{schema_id}"] == 1


def test_registry_login_outage_and_unknown_subject(registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_id = registry.register("orders-value", "string")
    registry.login = "reader:secret"
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    client = Registry(registry.url, "reader", "REGISTRY_PASSWORD")
    assert client.of_subject("orders-value").schema_id == schema_id
    assert "secret" not in pickle.dumps(client).decode("latin-1")
    with pytest.raises(UsageError, match="has no subject payments-value of version latest"):
        client.of_subject("payments-value")
    with pytest.raises(UsageError, match="refuses requests without a login: status 401"):
        Registry(registry.url).by_id(schema_id)
    registry.failures = 2
    assert client.by_id(schema_id).schema_id == schema_id
    registry.failures = 100
    with pytest.raises(PipelineError, match="does not answer /schemas/ids/5: status 503"):
        client.by_id(5)
    registry.failures = 0
    refusing = f"http://127.0.0.1:1,{registry.url}"
    assert Registry(refusing, "reader", "REGISTRY_PASSWORD").by_id(schema_id).source == b'"string"'
    with pytest.raises(UsageError, match="without a login"):
        Registry("http://user:password@registry:8081")
