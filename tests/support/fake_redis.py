"""A Redis in this process, for what reads or writes keys without scripts. Scripts are tested on a real server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import fakeredis

from tidegate.store.keys import GroupKeys

URL: Final = "redis://fake:6379/0"
KEY_BYTES: Final = 64
SHARDS: Final = 50


class FakeClient(fakeredis.FakeRedis):
    """With MEMORY USAGE, which fakeredis lacks."""

    def memory_usage(self, key: Any, samples: int | None = None) -> int | None:
        """The same bytes for every key."""
        return KEY_BYTES if self.exists(key) else None


class FakeRedis:
    """The clients of one fake server, whatever their address."""

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer(server_type="valkey", version=(8,))

    def server_client(self, host: str, port: int, database: int, options: Mapping[str, Any]) -> FakeClient:
        """As `store.clients.server_client`."""
        return FakeClient(host=host, port=port, db=database, server=self._server)

    @property
    def client(self) -> Any:
        """A client of database 0."""
        return self.server_client("fake", 6379, 0, {})


def group_keys(group_id: str) -> GroupKeys:
    """Keys of a group of organisation `default`."""
    return GroupKeys.of("tidegate", SHARDS, "default", group_id)
