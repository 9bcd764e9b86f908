"""The base of all bodies and queries of the REST API."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model


class Model(BaseModel):
    """A body or query of the REST API: unknown fields are refused, undocumented ones never sent.

    `defer_build`: pydantic builds a validator on first use, because building all of them delays the start of a broker.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Nothing(Model):
    """No query, or no body."""


Org = Annotated[
    str, Field(default="default", pattern=r"^[a-z0-9-]{1,63}$", description="organisation; a part of key names")
]


class OfOrg(Model):
    """The query of endpoints of one organisation."""

    org: Org = "default"


def fields_of(source: type[Any], *left_out: str, **types: Any) -> type[Model]:
    """A base model with the fields of a dataclass, so that they are declared once; `types` differ in JSON."""
    hints = get_type_hints(source) | types
    names = [field.name for field in dataclasses.fields(source) if field.name not in left_out]
    fields: dict[str, Any] = {name: (hints[name], ...) for name in names}
    return create_model(f"{source.__name__}Fields", __base__=Model, **fields)
