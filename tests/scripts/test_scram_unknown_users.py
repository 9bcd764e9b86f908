"""The salts that SCRAM answers unknown users with: the same from every broker, and not to be computed by clients."""

from __future__ import annotations

import base64
import hashlib

from tidegate.cluster.identity import open_cluster
from tidegate.security.sasl import Scram
from tidegate.security.users import SCRAM_MECHANISMS, Users
from tidegate.settings import Settings
from tidegate.store.store import Store

NAMES = ("nobody", "nobody2", "élise")


async def salts(store: Store) -> dict[tuple[str, str], bytes]:
    """What a broker that has just started answers."""
    users, found = Users(store, store.cluster_keys), {}
    for mechanism in SCRAM_MECHANISMS:
        for name in NAMES:
            answer = await Scram(mechanism, users).step(f"n,,n={name},r=abcdefgh".encode())
            found[mechanism, name] = base64.b64decode(answer.split(b",s=")[1].split(b",")[0])
    return found


async def test_salt_of_an_unknown_user_cannot_be_computed_from_public_names(store: Store, settings: Settings) -> None:
    """Whoever can compute it knows which users do not exist."""
    await open_cluster(store, settings)

    public = {hashlib.sha256(f"{store.cluster_keys.users}{name}".encode()).digest() for name in NAMES}
    assert not public & set((await salts(store)).values())


async def test_salt_of_an_unknown_user_is_the_same_on_every_broker(store: Store, settings: Settings) -> None:
    await open_cluster(store, settings)
    first = await salts(store)
    await open_cluster(store, settings)

    assert await salts(store) == first
    assert {len(salt) for salt in first.values()} == {32}


async def test_salt_of_an_unknown_user_differs_by_mechanism_as_those_of_users_do(
    store: Store, settings: Settings
) -> None:
    await open_cluster(store, settings)
    found = await salts(store)

    assert len(set(found.values())) == len(found)


async def test_salt_of_an_unknown_user_differs_by_cluster(store: Store, settings: Settings) -> None:
    await open_cluster(store, settings)
    first = await salts(store)
    await store.command("DEL", store.cluster_keys.info)
    await open_cluster(store, settings)

    assert not set(first.values()) & set((await salts(store)).values())
