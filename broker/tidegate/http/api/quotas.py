"""REST endpoints of quotas."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tidegate.errors import InvalidRequest
from tidegate.http import actions
from tidegate.http.api.endpoint import Asked, endpoint
from tidegate.http.models.base import Model, OfOrg
from tidegate.quotas.entities import CLUSTER_ORG, Entity
from tidegate.quotas.table import Change

CHANGES_MAX = 1_000
"""Of one request."""


class Quota(Model):
    """A quota; the entity is `user=alice`, `user=alice&client-id=app`, `ip=…` or `org=…`, a type alone the default."""

    entity: str
    quota: str
    value: float


class QuotaList(Model):
    """The quotas of an organisation."""

    quotas: list[Quota]


class QuotaChange(Model):
    """Set a quota; null removes it."""

    entity: str
    quota: str
    value: float | None


class QuotaChanges(Model):
    """Changes made in one step."""

    changes: list[QuotaChange] = Field(min_length=1, max_length=CHANGES_MAX, fail_fast=True)


@endpoint("GET", "/quotas", QuotaList, query=OfOrg)
async def list_quotas(asked: Asked) -> dict[str, Any]:
    """Quotas of clients, which hold for the whole cluster."""
    return _listed(asked)


@endpoint("PATCH", "/quotas", QuotaList, query=OfOrg, body=QuotaChanges, fails=(403,))
async def change_quotas(asked: Asked) -> dict[str, Any]:
    """Set and remove quotas."""
    changes = [_change(asked.query.org, one) for one in asked.body.changes]
    await actions.change_quotas(asked.context, asked.actor, asked.query.org, changes)
    return _listed(asked)


def _listed(asked: Asked) -> dict[str, Any]:
    assert asked.context.quotas is not None
    found = asked.context.quotas.quotas.table.of_org(asked.query.org)
    return {
        "quotas": [
            {"entity": entity.text(), "quota": quota.value, "value": value}
            for entity, values in found.items()
            for quota, value in values.items()
        ]
    }


def _change(org: str, wanted: QuotaChange) -> Change:
    """Raises InvalidRequest."""
    try:
        entity = Entity.of_text(wanted.entity).checked()
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if entity.is_of_cluster and org != CLUSTER_ORG:
        raise InvalidRequest(f"only organisation {CLUSTER_ORG!r} has quotas of addresses and organisations")
    return entity, entity.check_quota(wanted.quota, wanted.value), wanted.value
