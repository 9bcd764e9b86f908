"""An Iceberg table of a pyiceberg catalog: made, evolved, appended to once for each offset of a topic partition.

The table's property `tidegate.<topic>.<topic id>` has the last offset of each partition. It changes in the commit that
adds the files, so a micro-batch that runs again adds nothing, also when its checkpoint was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import parse_transform
from pyiceberg.utils.config import Config

from tidegate_pipeline.decode.schema import DECODED_ARROW
from tidegate_pipeline.errors import ArchiveConflict, PipelineError, UsageError
from tidegate_pipeline.tables.iceberg_nulls import keep_null_lists
from tidegate_pipeline.tables.partition_fields import BY_DAY, parse_fields
from tidegate_pipeline.tables.topic_ids import id_of_topic

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

STATE_PARTITION_BY: Final = "partition"
"""Of a table with the newest row of each key: that of a key never changes."""
_UPSERT: Final = "tidegate.upsert"

_COMMITS_MAX: Final = 10
"""Attempts beside other writers of the table, such as its maintenance."""
_PROPERTIES: Final = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}

Place = tuple[str, int]
"""Topic and partition."""

keep_null_lists()


@dataclass(frozen=True)
class IcebergPlan:
    """Where rows go, and whose they are. `name` is `catalog.namespace.table`; `topic_id` in hex, or JSON,
    topic -> id.

    `partition_by` counts when the table is made: `day(timestamp)`, `hour(timestamp)`, `bucket(16, key)`, a column, or
    several of them with commas.
    """

    name: str
    topic_id: str = ""
    columns: pa.Schema = DECODED_ARROW
    partition_by: str = BY_DAY
    is_upsert: bool = False
    """The table has the newest row of each key, not all records; a property of it says so."""

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if len(self.name.split(".")) < 3:
            raise UsageError(f"an Iceberg table is catalog.namespace.table, not {self.name}")
        list(parse_fields(self.partition_by))

    @cached_property
    def _catalog(self) -> Catalog:
        name = self.name.partition(".")[0]
        try:
            return load_catalog(name, **(Config().get_catalog_config(name) or {}))
        except Exception as error:
            raise UsageError(
                f"the Iceberg catalog {name}: {error}; pyiceberg finds it in .pyiceberg.yaml or in"
                f" PYICEBERG_CATALOG__{name.upper()}__URI"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_catalog"}

    @property
    def _identifier(self) -> str:
        return self.name.partition(".")[2]

    def table(self) -> Table | None:
        """Its newest version, if there is one."""
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def prepared(self) -> Table:
        """The table with at least the columns of the rows, made where there is none. Raises UsageError."""
        table = self.table() or self._created()
        if (_UPSERT in table.properties) != self.is_upsert:
            kind = "of all records" if self.is_upsert else "with the newest record of each key"
            raise UsageError(f"{self.name} is a table {kind}: choose another")
        try:
            with table.update_schema() as update:
                update.union_by_name(self.columns)
        except (ValidationError, ValueError) as error:
            raise UsageError(f"{self.name}: its columns cannot become those of the rows: {error}") from error
        return table

    def _created(self) -> Table:
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        try:
            with (
                self._catalog.create_table_transaction(
                    self._identifier,
                    self.columns,
                    properties=_PROPERTIES | ({_UPSERT: "key"} if self.is_upsert else {}),
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for field in parse_fields(self.partition_by):
                    width = f"[{field.width}]" if field.width else ""
                    spec.add_field(field.column, parse_transform(f"{field.transform}{width}"), field.long_name)
        except TableAlreadyExistsError:
            pass
        except ValueError as error:
            raise UsageError(f"{self.name} cannot be partitioned by {self.partition_by}: {error}") from error
        return self._catalog.load_table(self._identifier)

    def value_type(self) -> pa.DataType | None:
        """The type of the column `value`; None where there is no table."""
        table = self.table()
        return None if table is None else schema_to_pyarrow(table.schema(), include_field_ids=False).field("value").type

    def _property(self, topic: str) -> str:
        return f"tidegate.{topic}.{id_of_topic(self.topic_id, topic)}"

    def last_offsets(self, table: Table, topic: str) -> dict[int, int]:
        """Partition -> last offset that the table has."""
        found = json.loads(table.properties.get(self._property(topic), "{}"))
        return {int(partition): offset for partition, offset in found.items()}

    def offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each partition of which the table has anything."""
        table = self.table()
        found = self.last_offsets(table, topic) if table is not None else {}
        return {partition: found[partition] + 1 for partition in partitions if partition in found}

    def commit(self, ranges: Mapping[Place, tuple[int, int]], change: Callable[[Transaction], None]) -> None:
        """A change and the last offsets in one commit. Raises ArchiveConflict where they overlap what is there."""
        for _ in range(_COMMITS_MAX):
            table = self.table()
            if table is None:
                raise PipelineError(f"{self.name} was dropped while its query ran")
            properties = self._advanced(table, ranges)
            try:
                with without_retries(table).transaction() as transaction:
                    transaction.set_properties(properties)
                    change(transaction)
                return
            except CommitFailedException as error:
                failure = error
        raise PipelineError(f"{self.name}: {_COMMITS_MAX} commits failed beside other writers: {failure}")

    def _advanced(self, table: Table, ranges: Mapping[Place, tuple[int, int]]) -> dict[str, str]:
        properties = {}
        for topic in {topic for topic, _ in ranges}:
            there = self.last_offsets(table, topic)
            for (name, partition), (first, last) in ranges.items():
                if name == topic:
                    if first <= there.get(partition, -1):
                        raise ArchiveConflict(
                            f"{topic}/{partition}: offsets {first} to {last} go across {there[partition]}, which"
                            f" {self.name} has: another query writes this table"
                        )
                    there[partition] = last
            properties[self._property(topic)] = json.dumps(there, sort_keys=True)
        return properties


def figures(name: str) -> dict[str, object]:
    """Of the newest snapshot."""
    table = IcebergPlan(name).table()
    files = [task.file for task in table.scan().plan_files()] if table is not None else []
    sizes = [file.file_size_in_bytes for file in files]
    return {"table": name, "files": len(files), "file_bytes": sum(sizes)}


def without_retries(table: Table) -> Table:
    """For this object alone: pyiceberg would append again beside a commit that may have added the same offsets."""
    table.metadata.properties["commit.retry.num-retries"] = "0"
    return table
