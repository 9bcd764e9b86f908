"""What access control adds to requests of a client that is allowed them: the same cluster, with and without rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.cost import operations
from tests.cost.cluster import Cluster, Cost, run
from tidegate.security.acls import CLUSTER_NAME, AclBinding, Operation, PatternType, Permission, ResourceType

FREQUENT: Final = (
    "heartbeat", "heartbeat-16x16", "commit-1", "offset-fetch-1", "produce", "delivery-1", "metadata",
    "find-coordinator", "consumer-heartbeat-by-script",
)  # fmt: skip
"""What clients ask all the time; requests of more topics are dearer by themselves, and access control adds the same."""
_EVERYTHING: Final = ((ResourceType.TOPIC, "*"), (ResourceType.GROUP, "*"), (ResourceType.CLUSTER, CLUSTER_NAME))


def measure(names: Sequence[str], **settings: Any) -> dict[str, Cost]:
    """The costs of some operations in a broker with these settings."""

    async def measured(cluster: Cluster) -> dict[str, Cost]:
        await operations.set_up(cluster)
        app = cluster.broker.app
        assert app is not None and app.context.security is not None
        rules = [
            AclBinding(kind, name, PatternType.LITERAL, "User:*", "*", Operation.ALL, Permission.ALLOW)
            for kind, name in _EVERYTHING
        ]
        if app.settings.acl_enabled:
            await app.context.security.rules.add("default", rules, "User:admin")
        found = {}
        for name in names:
            cluster.restart_randomness(name)
            found[name] = await cluster.measure(await operations.OPERATIONS[name](cluster))
        return found

    return run(measured, **settings)


def added_percent() -> dict[str, float]:
    """Bytecodes that access control adds to each frequent operation, in percent of those without it."""
    before, now = measure(FREQUENT), measure(FREQUENT, acl_enabled=True, allow_everyone_if_no_acl_found=True)
    return {name: round(100 * (now[name]["bytecodes"] / before[name]["bytecodes"] - 1), 2) for name in FREQUENT}


if __name__ == "__main__":
    for name, percent in added_percent().items():
        print(f"{name:<32}{percent:>6.2f} %")
