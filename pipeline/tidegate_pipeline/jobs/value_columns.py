"""Values of a topic as columns, as the job `decode` is asked to: by the schema registry, or plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.topic_options import access_to, topic_options
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources.starting import planner_of
from tidegate_pipeline.topics import Topic
from tidegate_pipeline.values.codec import Codec, Evolution
from tidegate_pipeline.values.columns import PutAside, decode_column, fail, json_column
from tidegate_pipeline.values.dead_letters import DeadLetters
from tidegate_pipeline.values.plain_json import inferred_schema, merged
from tidegate_pipeline.values.registry import Registry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

READ: Final = "values_read"
DECODED: Final = "values_decoded"
UNKNOWN_FIELDS: Final = "records_with_unknown_fields"
_SAMPLED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Values:
    """`registry` has `subject` (default `<topic>-value`), `message`, `read_by`; `json` has `schema`, as DDL.

    Several topics have one schema: of `subject`, or for `json` of all of them.
    """

    form: Literal["registry", "json"]
    subject: str | None = None
    message: str = ""
    read_by: Evolution = "reader"
    schema: str = ""

    def check(self, settings: PipelineSettings, topics: Sequence[str]) -> None:
        """What can be found out without Spark. Raises UsageError, PipelineError."""
        if self.form == "registry":
            if missing := [name for name in ("fastavro", "jsonschema", "requests") if find_spec(name) is None]:
                raise UsageError(f"no {', '.join(missing)}: pip install 'tidegate-pipeline[values]'")
            self.codec(settings, topics).arrow_type()
        if settings.values.on_undecodable == "dead-letter" and not settings.archive.path:
            raise UsageError("where do dead letters go? archive.path in the settings")

    def codec(self, settings: PipelineSettings, topics: Sequence[str]) -> Codec:
        """By the newest schema. Raises UsageError, PipelineError."""
        given = settings.values
        if not given.registry:
            raise UsageError("where is the schema registry? values.registry in the settings")
        registry = Registry(given.registry, given.user, given.password_variable, given.timeout_s)
        return Codec(registry, registry.of_subject(self.subject or f"{topics[0]}-value"), self.message, self.read_by)


class ValueTarget(NamedTuple):
    """Whose values."""

    settings: PipelineSettings
    topics: Sequence[Topic]
    org: str

    def put_aside(self) -> PutAside:
        """What happens to undecodable records."""
        given = self.settings
        if given.values.on_undecodable == "fail":
            return fail
        ids = {topic.name: topic.topic_id for topic in self.topics}
        return DeadLetters(given.archive.path, self.org, ids, given.values.limit).add

    def names(self) -> list[str]:
        """Of the topics."""
        return [topic.name for topic in self.topics]


def with_values(rows: DataFrame, values: Values, target: ValueTarget, known: pa.DataType | None) -> DataFrame:
    """`rows` with columns for values, and counts of what was decoded and what was not; `known` is the table's type."""
    from pyspark.sql.functions import count, lit

    read = rows.observe(READ, count(lit(1)).alias(READ))
    if values.form == "registry":
        codec = values.codec(target.settings, target.names())
        found = decode_column(read, "value", codec, target.put_aside())
    else:
        schema = values.schema or _schema(rows, target, known)
        found = json_column(read, "value", schema, target.put_aside(), UNKNOWN_FIELDS)
    return found.observe(DECODED, count(lit(1)).alias(DECODED))


def dead_letter_count(observed: Mapping[str, int]) -> int:
    """Of what `with_values` counted."""
    return observed.get(READ, 0) - observed.get(DECODED, 0)


def _schema(rows: DataFrame, target: ValueTarget, known: pa.DataType | None) -> StructType:
    """That of the first records; of a table that is there, its own with what fields the newest records have more."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    found = None if known is None else from_arrow_type(known)
    reader = rows.sparkSession.read.format("tidegate").options(**topic_options(target.settings, target.org))
    reader = reader.option("subscribe", ",".join(target.names()))
    if not isinstance(found, StructType):
        return inferred_schema(reader.load(), sample=_SAMPLED)
    try:
        newest = inferred_schema(reader.option("startingOffsets", _newest(target)).load(), sample=_SAMPLED)
    except UsageError:  # none of them is an object
        return found
    return merged(found, newest)


def _newest(target: ValueTarget) -> str:
    """Offsets before the ends of the partitions."""
    each = -(-_SAMPLED // max(sum(topic.partition_count for topic in target.topics), 1))
    offsets: dict[str, dict[str, int]] = {}
    for topic in target.topics:
        access = access_to(target.settings, target.org, topic.name)
        for partition in range(topic.partition_count):
            tiers = planner_of(access, (topic.name, partition), topic).tiers()
            offsets.setdefault(topic.name, {})[str(partition)] = max(tiers.start, tiers.end - each)
        access.close()
    return json.dumps(offsets)
