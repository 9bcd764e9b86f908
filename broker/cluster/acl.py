"""What a broker's user of Redis may do, and nothing else: the rules for `ACL SETUSER`.

The list is written by hand, so that a right more is seen in review; a test holds it to what brokers and their scripts
call, and `make acl` runs the tests as this user. Scripts run with the rights of who calls them.
"""

from __future__ import annotations

import re
from typing import Final

from broker.settings import Settings
from broker.store.addresses import parse_redis_url

CONNECTION: Final = ("info", "memory|usage", "ping", "time")
"""HELLO and AUTH need no right."""
SCRIPTS: Final = ("eval", "evalsha", "script|load")
MESSAGES: Final = ("publish", "subscribe", "unsubscribe")
KEYS: Final = ("del", "exists", "get", "mget", "pexpire", "set", "unlink")
HASHES: Final = (
    "hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen", "hmget", "hscan", "hset", "hsetnx", "hvals",
)  # fmt: skip
SORTED_SETS: Final = ("zadd", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zrevrangebyscore", "zscore")
STREAMS: Final = ("xadd", "xinfo|stream", "xlen", "xrange", "xread", "xrevrange", "xtrim")
MIRROR: Final = (
    "xack", "xclaim", "xgroup|create", "xgroup|createconsumer", "xgroup|delconsumer", "xgroup|destroy", "xgroup|setid",
    "xinfo|consumers", "xpending",
)  # fmt: skip
"""Groups shown as Redis consumer groups: needed also where `mirror_groups` is off, for a topic may turn it on."""

_PROOFS: Final = {"memory": (), "replicated": ("wait",), "fsynced": ("wait", "waitaof")}


def acl_rules(settings: Settings) -> list[str]:
    """The rules of a broker's user, without its name, `on` and password: `ACL SETUSER <name> on ><password> <rules>`.

    They begin with taking every right away, so that given again they leave no older one. What depends on the settings:
    `key_prefix`, `durability` and, from `redis_url`, the database's number, Sentinel and Cluster.
    """
    prefix = re.sub(r"([*?\[\]\\^])", r"\\\1", settings.key_prefix)
    topology = parse_redis_url(settings.redis_url)
    commands = [*CONNECTION, *SCRIPTS, *MESSAGES, *KEYS, *HASHES, *SORTED_SETS, *STREAMS, *MIRROR]
    commands += _PROOFS[settings.durability.partition(":")[0]]
    if topology.kind == "sentinel":
        commands.append("role")
    if topology.kind == "cluster":
        commands += ["asking", "cluster|info", "cluster|slots"]
    if topology.database:
        commands.append("select")
    rules = ["resetkeys", f"~{prefix}:*", "resetchannels", f"&{prefix}:*", "-@all"]
    return rules + [f"+{command}" for command in commands]
