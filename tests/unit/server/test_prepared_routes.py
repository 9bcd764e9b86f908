"""Routes that are made before their first request."""

from __future__ import annotations

import asyncio

from tidegate.apis import registry
from tidegate.app import _MEMBERS_APIS
from tidegate.protocol import headers
from tidegate.server.dispatch import Routes


async def test_every_version_of_what_members_ask_is_made_beside_the_loop() -> None:
    apis = registry.load_all()
    routes = Routes(apis)

    for api_key in _MEMBERS_APIS:
        await asyncio.to_thread(routes.prepare, api_key)

    served = [(key, version) for key in _MEMBERS_APIS for version in range(apis[key].first, apis[key].last + 1)]
    assert sorted(routes) == sorted(headers.route_key(*one) for one in served)
    assert {(route.key, route.version) for route in routes.values()} == set(served)
