"""`python -m tests.chart.schema`: writes into values.schema.json which settings there are, and what they may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tidegate.settings import Settings
from tidegate_pipeline.settings import PipelineSettings

PATH: Final = Path(__file__).resolve().parents[2] / "helm" / "values.schema.json"

BY_OTHER_VALUES: Final = frozenset(
    {
        "redis_url", "host", "port", "address_mode", "listeners", "advertised_listeners",
        "listener_security_protocol_map", "ssl_certificate_file", "ssl_key_file",
        "ssl_client_ca_file", "redis_ca_file", "redis_client_cert_file", "redis_client_key_file",
        "redis_sentinel_password", "node_id", "admin_host", "admin_port", "admin_operator_token",
        "admin_operator_password", "admin_viewer_token", "shutdown_timeout_ms", "drain_notice_ms", "archive_path",
    }
)  # fmt: skip
"""Settings of brokers that values of their own make, or that no two pods may share."""
_BY_OTHER_VALUES_TOO: Final = {"redis": ("url", "key_prefix"), "archive": ("path",)}
_KEPT: Final = ("type", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "minLength")


def written() -> str:
    """The schema as it is to be; everything but settings stays as it stands."""
    schema = json.loads(PATH.read_text("utf-8"))
    properties = schema["properties"]
    properties["settings"]["properties"] = _settings()
    properties["pipeline"]["properties"]["config"]["properties"] = _sections()
    return json.dumps(schema, indent=2) + "\n"


def _settings() -> dict[str, Any]:
    fields = Settings.model_json_schema()["properties"]
    return {name: _value(field) for name, field in fields.items() if name not in BY_OTHER_VALUES}


def _sections() -> dict[str, Any]:
    """Sections of pipeline.toml. `spark` and `jobs` are what Spark and the jobs make of them."""
    whole = PipelineSettings.model_json_schema()
    sections: dict[str, Any] = {"spark": {"type": "object"}, "jobs": {"type": "object"}}
    for section, field in whole["properties"].items():
        if section in sections:
            continue
        fields = whole["$defs"][(field.get("$ref") or field["allOf"][0]["$ref"]).rpartition("/")[2]]["properties"]
        own = {name: _value(one) for name, one in fields.items() if name not in _BY_OTHER_VALUES_TOO.get(section, ())}
        sections[section] = {"type": "object", "additionalProperties": False, "properties": own}
    return sections


def _value(field: dict[str, Any]) -> dict[str, Any]:
    """What JSON schema says of one value; null stands for a setting that is not given."""
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    (kind,) = kinds
    return {"description": field["description"], **{name: kind[name] for name in _KEPT if name in kind}}


if __name__ == "__main__":
    PATH.write_text(written(), "utf-8")
