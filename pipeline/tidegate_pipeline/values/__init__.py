"""Columns out of keys and values: Avro, Protobuf and JSON Schema through a schema registry, and plain JSON."""

from tidegate_pipeline.values.columns import decoded, json_decoded
from tidegate_pipeline.values.plain_json import inferred_schema
from tidegate_pipeline.values.registry import Registry

__all__ = ["Registry", "decoded", "inferred_schema", "json_decoded"]
