"""Routes that are made before their first request."""

from __future__ import annotations

import asyncio

from tidegate.apis import registry
from tidegate.protocol import headers
from tidegate.server.routes import Routes


async def test_every_version_of_what_members_ask_is_made_beside_the_loop() -> None:
    apis = registry.load_all()
    routes = Routes(apis)
    prepared = [api.key for api in apis.values() if api.prepared]
    assert set(prepared) == {8, 9, 10, 11, 12, 13, 14}

    for api_key in prepared:
        await asyncio.to_thread(routes.prepare, api_key)

    served = [(key, version) for key in prepared for version in range(apis[key].first, apis[key].last + 1)]
    assert sorted(routes) == sorted(headers.route_key(*one) for one in served)
    assert {(route.key, route.version) for route in routes.values()} == set(served)
