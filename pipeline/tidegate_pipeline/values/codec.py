"""Bytes in Confluent's wire format (a zero, four bytes of schema id, the payload) into values of one Arrow type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Literal

import pyarrow as pa

from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.values.registry import Registry, Schema, UnknownSchema
from tidegate_pipeline.values.undecodable import Undecodable

Evolution = Literal["reader", "writer"]
"""By which schema records are read: resolved to the reader's, or by the one that each names, fitted by field name."""

_HEAD: Final = Struct(">bI")
_DECODERS_MAX: Final = 1_000

Decode = Callable[[bytes, int], object]


@dataclass(slots=True)
class Codec:
    """Pickled into tasks: decoders are built there, for each schema id that appears."""

    registry: Registry
    reader: Schema
    message: str = ""
    evolution: Evolution = "reader"
    _decoders: dict[int, Decode | Undecodable] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> tuple[object, ...]:
        return self.registry, self.reader, self.message, self.evolution

    def __setstate__(self, state: tuple[Registry, Schema, str, Evolution]) -> None:
        self.registry, self.reader, self.message, self.evolution = state
        self._decoders = {}

    def arrow_type(self) -> pa.DataType:
        """The column's type, by the reader's schema. Raises UsageError."""
        if self.reader.kind == "AVRO":
            from tidegate_pipeline.values import avro

            return avro.column_type(self.reader)
        if self.reader.kind == "PROTOBUF":
            from tidegate_pipeline.values import protobuf

            return protobuf.column_type(self.reader, self.message)
        from tidegate_pipeline.values import json_schema

        return json_schema.column_type(self.reader)

    def decode(self, data: bytes) -> object:
        """Raises Undecodable, and PipelineError where the registry is away."""
        if len(data) < _HEAD.size or data[0] != 0:
            raise Undecodable(f"no schema id: it begins with {data[:1].hex() or 'nothing'}, not with 00")
        schema_id = _HEAD.unpack_from(data)[1]
        decode = self._decoders.get(schema_id)
        if decode is None:
            decode = self._built(schema_id)
        if isinstance(decode, Undecodable):
            raise decode
        try:
            return decode(data, _HEAD.size)
        except PipelineError:
            raise
        except Undecodable as error:
            raise Undecodable(error.reason, schema_id) from None
        except Exception as error:  # noqa: BLE001  decoders raise whatever broken bytes lead them to
            raise Undecodable(f"{type(error).__name__}: {error}", schema_id) from None

    def _built(self, schema_id: int) -> Decode | Undecodable:
        try:
            built = self._decoder(self.registry.by_id(schema_id))
        except UnknownSchema as error:
            built = Undecodable(str(error), schema_id)
        if len(self._decoders) >= _DECODERS_MAX:
            self._decoders.clear()
        self._decoders[schema_id] = built
        return built

    def _decoder(self, writer: Schema) -> Decode | Undecodable:
        if writer.kind != self.reader.kind:
            return Undecodable(f"its schema is {writer.kind}, the reader's {self.reader.kind}", writer.schema_id)
        try:
            return self._of_kind(writer, self.reader if self.evolution == "reader" else None)
        except Exception as error:  # noqa: BLE001  a schema that no decoder takes is its records' fault
            return Undecodable(f"its schema: {type(error).__name__}: {error}", writer.schema_id)

    def _of_kind(self, writer: Schema, resolved: Schema | None) -> Decode:
        if self.reader.kind == "AVRO":
            from tidegate_pipeline.values import avro

            return avro.decoder(writer, resolved)
        if self.reader.kind == "PROTOBUF":
            from tidegate_pipeline.values import protobuf

            return protobuf.decoder(writer, resolved, self.message)
        from tidegate_pipeline.values import json_schema

        return json_schema.decoder(writer, self.reader)
