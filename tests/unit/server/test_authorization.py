"""Every served API has a rule of access; one without would be refused to all but super users."""

from __future__ import annotations

from tidegate.apis import registry
from tidegate.server.authorization.filters import FILTERS
from tidegate.server.authorization.rules import RULES


def test_every_served_api_has_a_rule() -> None:
    served = registry.load_all()

    assert {api.name for key, api in served.items() if key not in RULES} == set()
    assert set(FILTERS) <= set(RULES)
