"""docs/settings-pipeline.md, from `settings.py` and the options of topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Final, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegate_pipeline.addresses import shown
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources.options import CONFIGURED, TopicOptions

_HEAD: Final = """\
# Settings of the pipeline

A TOML file (`--config`; [an example](pipeline.toml)) has a table for each section. Environment variables win over it:
`archive.segment_bytes` is `TIDEGATE_PIPELINE_ARCHIVE_SEGMENT_BYTES`. Where a broker has the same setting, its variable
is the default.
(Written by `make docs` from `pipeline/tidegate_pipeline/settings.py`.)
"""
_TAIL: Final = """
## spark

Names and values go to Spark as they are: `executor.memory = "2g"` under `[spark]` is `spark.executor.memory`. They win
over what the pipeline sets (`spark.sql.session.timeZone=UTC`, the RocksDB state store, fair scheduling, and for a local
run a quarter of the machine's memory for the JVM and as many shuffle partitions as cores); so does what spark-submit
or `spark-defaults.conf` says. In the environment: `TIDEGATE_PIPELINE_SPARK` as JSON.

## jobs

`tidegate pipeline run` starts one query for each table `[jobs.<name>]`: `verb` (the name, if it is not there), `every`
(else it reads what is there and ends), `checkpoint`, and the options of the verb, with `_` for `-`.

## Spark's log

What Spark and its Python workers print is in `$XDG_STATE_HOME/tidegate/spark.log` (`~/.local/state/…`) unless
`log.path` says otherwise, begun again above 16 MiB. Under spark-submit it stays where spark-submit writes.
"""
_OPTIONS: Final = """
## Options of format("tidegate")

Their names are without case. What is not given comes from the settings above.

| Option | Default | Meaning |
|---|---|---|
"""


def markdown() -> str:
    """The page."""
    sections = "".join(_section(name, field) for name, field in PipelineSettings.model_fields.items())
    options = [
        f"| `{field.alias}` | {_option_default(field)} | {_cell(field.description or '')} |"
        for field in TopicOptions.model_fields.values()
    ]
    return _HEAD + sections + _TAIL + _OPTIONS + "\n".join(options) + "\n"


def in_force(settings: PipelineSettings) -> Iterator[str]:
    """Each setting with its value, without passwords, and its meaning."""
    for name, section in settings:
        if isinstance(section, BaseModel):
            for setting, value in section:
                reported = shown(value) if setting == "url" else value
                yield f"{name}.{setting} = {json.dumps(reported)}"
                yield f"    {type(section).model_fields[setting].description}"
    for name, value in settings.spark.items():
        yield f"{name} = {json.dumps(value)}"


def _section(name: str, field: FieldInfo) -> str:
    section = field.annotation
    if not (isinstance(section, type) and issubclass(section, BaseModel)):
        return ""
    lines = [
        "",
        f"## {name}",
        "",
        section.__doc__ or "",
        "",
        "| Setting | Values | Default | Meaning |",
        "|---|---|---|---|",
    ]
    for setting, one in section.model_fields.items():
        lines.append(f"| `{name}.{setting}` | {_values(one)} | {_default(one)} | {_cell(one.description or '')} |")
    return "\n".join(lines) + "\n"


def _values(field: FieldInfo) -> str:
    if get_origin(field.annotation):
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    return {"int": "number", "float": "number", "bool": "true, false"}.get(field.annotation.__name__, "text")  # type: ignore[union-attr]


def _default(field: FieldInfo) -> str:
    if isinstance(field.default_factory, partial):
        variable, otherwise = field.default_factory.args
        return f"`{variable}`" + (f", else `{otherwise}`" if otherwise else "")
    return f"`{field.default}`" if field.default != "" else "none"


def _option_default(field: FieldInfo) -> str:
    """What holds where neither the query nor the settings say anything."""
    if field.alias in CONFIGURED:
        return f"`{CONFIGURED[field.alias]}`"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
