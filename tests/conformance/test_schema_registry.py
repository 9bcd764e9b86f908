"""Values by a schema registry that others wrote: Apicurio, by its paths that are Confluent's."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import requests

from bench.cluster import free_port
from bench.jars import PeerUnavailable, registry_jar
from tests.support.schema_registry import framed
from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.values.codec import Codec
from tidegate_pipeline.values.registry import Registry
from tidegate_pipeline.values.undecodable import Undecodable

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(300)]

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "to", "type": "shop.Address"}],
}  # fmt: skip
START_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of its Confluent-compatible paths."""
    try:
        jar = registry_jar()
    except PeerUnavailable as error:
        pytest.skip(str(error))
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    options = ["-Xmx256m", f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(["java", *options, "-jar", str(jar)], cwd=folder, stdout=log, stderr=log)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health/ready", server, folder / "log")
        yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
    finally:
        server.kill()
        server.wait()


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-2_000:]
        try:
            if requests.get(url, timeout=5).ok:
                return
        except OSError:
            time.sleep(0.2)


def register(
    url: str, subject: str, schema: object, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
) -> int:
    """A version of a subject; returns its id."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    named = [dict(zip(("name", "subject", "version"), one, strict=True)) for one in references]
    body = {"schema": text, "schemaType": kind, "references": named}
    reply = requests.post(f"{url}/subjects/{subject}/versions", json=body, timeout=30)
    assert reply.ok, reply.text
    return int(reply.json()["id"])


def avro(schema_id: int, schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return framed(schema_id, stream.getvalue())


def decoded(url: str, subject: str, *values: bytes) -> list[Any]:
    registry = Registry(url)
    codec = Codec(registry, registry.of_subject(subject), "", "reader")
    return pa.array([codec.decode(value) for value in values], codec.arrow_type()).to_pylist()  # type: ignore[no-any-return]


def test_registry_avro_references_and_evolution(url: str) -> None:
    register(url, "address", ADDRESS)
    first = register(url, "orders-value", ORDER, references=[("shop.Address", "address", 1)])
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "currency", "type": "string", "default": "EUR"}]}
    second = register(url, "orders-value", newer, references=[("shop.Address", "address", 1)])
    assert first != second

    fields = [ORDER["fields"][0], {"name": "to", "type": ADDRESS}]
    old = avro(first, {**ORDER, "fields": fields}, {"id": 1, "to": {"city": "Ulm"}})
    new_schema = {**ORDER, "fields": [*fields, newer["fields"][2]]}
    new = avro(second, new_schema, {"id": 2, "to": {"city": "Bonn"}, "currency": "USD"})

    assert decoded(url, "orders-value", old, new) == [
        {"id": 1, "to": {"city": "Ulm"}, "currency": "EUR"},
        {"id": 2, "to": {"city": "Bonn"}, "currency": "USD"},
    ]
    with pytest.raises(Undecodable, match="schema id 9999"):
        decoded(url, "orders-value", framed(9999, b""))


def test_registry_json_schema(url: str) -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema_id = register(url, "clicks-value", schema, "JSON")

    assert decoded(url, "clicks-value", framed(schema_id, b'{"id": 7}')) == [{"id": 7}]
    with pytest.raises(Undecodable, match="id"):
        decoded(url, "clicks-value", framed(schema_id, b"{}"))


def test_registry_without_serialized_protobuf_is_named(url: str) -> None:
    """Confluent's and Karapace answer ?format=serialized; this one answers the text, which is not compiled here."""
    register(url, "payments-value", 'syntax = "proto3"; message Payment { int64 id = 1; }', "PROTOBUF")

    with pytest.raises(PipelineError, match=r"has no serialized Protobuf schemas \(\?format=serialized\)"):
        decoded(url, "payments-value")


def test_registry_unknown_subject(url: str) -> None:
    with pytest.raises(UsageError, match="has no subject nothing-value of version latest"):
        decoded(url, "nothing-value")
