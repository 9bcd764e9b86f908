"""JSON Schema as Arrow types; documents are checked by jsonschema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
import pyarrow as pa
import referencing.jsonschema
from jsonschema.validators import validator_for

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.values.registry import Schema
from tidegate_pipeline.values.undecodable import Undecodable

Fit = Callable[[Any], Any]


def column_type(schema: Schema) -> pa.DataType:
    """Raises UsageError for a type that contains itself."""
    return _Types(schema).root[0]


def decoder(writer: Schema, reader: Schema) -> Callable[[bytes, int], object]:
    """Parses a document from an offset of the bytes, checks it by its schema, fits it to the reader's columns."""
    document = json.loads(writer.source)
    validator = validator_for(document)(document, registry=_registry(writer))
    fit = _Types(reader).root[1]

    def decode(data: bytes, at: int) -> object:
        try:
            value = json.loads(data[at:])
        except ValueError as error:
            raise Undecodable(f"not JSON: {error}", writer.schema_id) from None
        wrong = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if wrong is not None:
            raise Undecodable(f"{wrong.json_path}: {wrong.message}", writer.schema_id)
        return fit(value)

    return decode


def _registry(schema: Schema) -> referencing.Registry[Any]:
    resources = [
        (name, referencing.Resource.from_contents(json.loads(source), referencing.jsonschema.DRAFT7))
        for name, source in schema.references
    ]
    return referencing.Registry[Any]().with_resources(resources)


class _Types:
    """The Arrow type of a schema, and what fits documents to it. What has no one type is its text as JSON."""

    def __init__(self, schema: Schema) -> None:
        self._root = json.loads(schema.source)
        self._files = {name: json.loads(source) for name, source in schema.references}
        self.root = self._type(self._root, self._root, ())

    def _type(self, schema: Any, file: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
        if not isinstance(schema, Mapping):
            return pa.string(), _text
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), file, above)
        for word in ("oneOf", "anyOf"):
            branches = [one for one in schema.get(word, ()) if one != {"type": "null"}]
            if len(branches) == 1:
                return self._type(branches[0], file, above)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        named = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds or ()) if kind != "null"]
        if not named and all(isinstance(one, str) for one in schema.get("enum", [None])):
            named = ["string"]
        if sorted(named) == ["integer", "number"]:
            named = ["number"]
        return self._named(named[0], schema, file, above) if len(named) == 1 else (pa.string(), _text)

    def _named(self, kind: str, schema: Any, file: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
        if kind == "object" and schema.get("properties"):
            fields = {name: self._type(one, file, above) for name, one in schema["properties"].items()}
            return pa.struct([pa.field(name, one) for name, (one, _) in fields.items()]), _nullable(
                lambda found: {name: fit(found[name]) for name, (_, fit) in fields.items() if name in found}
            )
        if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
            value, fit = self._type(schema["additionalProperties"], file, above)
            return pa.map_(pa.string(), value), _nullable(lambda found: [(k, fit(v)) for k, v in found.items()])
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            item, fit = self._type(schema["items"], file, above)
            return pa.list_(pa.field("element", item)), _nullable(lambda found: [fit(one) for one in found])
        if kind == "number":
            return pa.float64(), _nullable(float)
        if kind == "integer":
            return pa.int64(), _nullable(int)
        if kind == "boolean":
            return pa.bool_(), _nullable(bool)
        return (pa.string(), _nullable(str)) if kind == "string" else (pa.string(), _text)

    def _reference(self, reference: str, file: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Fit]:
        name, _, pointer = reference.partition("#")
        if reference in above:
            raise UsageError(f"the JSON schema's {reference} contains itself: Spark has no such column")
        target = found = self._files.get(name) if name else file
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is None:
            raise UsageError(f"the JSON schema refers to {reference}, which is not there")
        return self._type(found, target, (*above, reference))


def _nullable(fit: Fit) -> Fit:
    return lambda value: None if value is None else fit(value)


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
