"""Values shared by all brokers of a cluster: its id, the layout of its keys, and settings that place data."""

from __future__ import annotations

import base64
import secrets
import uuid
from typing import Final

from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.scripts import Script
from tidegate.store.store import Store

OPEN_CLUSTER = Script("cluster/open_cluster")

LAYOUT_VERSION: Final = 1
"""Incremented when keys or their contents change so that older brokers would misread them."""

SALT_KEY: Final = "salt_key"
"""Field: a random key, from which brokers derive the salts of SCRAM users that do not exist."""
_SALT_KEY_BYTES: Final = 32


def new_cluster_id() -> str:
    """A random id of 22 characters, in Kafka's format."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


async def open_cluster(store: Store, settings: Settings, cluster_id: str | None = None) -> str:
    """The cluster's id, created by the first broker; `cluster_id` is restored if the store lost it.

    Raises CannotStart if this broker's layout or shared settings differ from the cluster's, or if a restore of the
    cluster has not ended; a broker that has a `cluster_id` serves already, and gets StoreUnavailable then.
    """
    shared = {
        "cluster_id": cluster_id or new_cluster_id(),
        "layout": str(LAYOUT_VERSION),
        "coordinator_shards": str(settings.coordinator_shards),
    }
    pairs = [text for pair in (*shared.items(), (SALT_KEY, secrets.token_hex(_SALT_KEY_BYTES))) for text in pair]
    restoring, *stored, _ = await store.run(OPEN_CLUSTER, [store.cluster_keys.info], *pairs)
    if restoring:
        where = f"this cluster ({settings.key_prefix!r} on {store.metadata_node}) is being restored"
        if cluster_id is not None:
            raise StoreUnavailable(where)
        raise CannotStart(f"{where}; if the restore was interrupted, repeat it")
    kept: list[str] = [value.decode() for value in stored]
    for (name, mine), theirs in zip(shared.items(), kept, strict=True):
        if name != "cluster_id" and mine != theirs:
            raise CannotStart(
                f"this cluster ({settings.key_prefix!r} on {store.metadata_node}) was made with "
                f"{name}={theirs}, this broker has {name}={mine}"
            )
    return kept[0]
