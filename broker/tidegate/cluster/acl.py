"""The rights of a broker's Redis user, as rules for `ACL SETUSER`.

The list is written by hand, so that an added right shows in review; a test compares it with the commands that brokers
and their scripts run, and `make test SUITE=acl` runs the tests as this user. Scripts run with their caller's rights.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.settings import Settings
from tidegate.store.addresses import parse_redis_url

CONNECTION: Final = ("info", "memory|usage", "ping", "time")
"""HELLO and AUTH need no right."""
SCRIPTS: Final = ("eval", "evalsha", "script|exists", "script|load")
"""Without `script|exists` a broker loads every script again when it connects."""
FUNCTIONS: Final = ("fcall", "function|delete", "function|list", "function|load")
"""Not needed: without them brokers run the scripts of groups by EVALSHA, which costs Redis twice as much."""
MESSAGES: Final = ("publish", "subscribe", "unsubscribe")
KEYS: Final = ("del", "exists", "get", "mget", "persist", "pexpire", "rename", "set", "type", "unlink")
"""`persist` and `rename` replace a log: compaction, and `tidegate topic repair`, which runs with the brokers' user."""
HASHES: Final = (
    "hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen", "hmget", "hscan", "hset", "hsetnx", "hvals",
)  # fmt: skip
SORTED_SETS: Final = (
    "zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zrevrangebyscore", "zscore",
)  # fmt: skip
STREAMS: Final = ("xadd", "xdel", "xinfo|stream", "xlen", "xrange", "xread", "xrevrange", "xtrim")
MIRROR: Final = (
    "xack", "xclaim", "xgroup|create", "xgroup|createconsumer", "xgroup|delconsumer", "xgroup|destroy", "xgroup|setid",
    "xautoclaim", "xinfo|consumers", "xinfo|groups", "xpending", "xreadgroup",
)  # fmt: skip
"""Groups mirrored as Redis consumer groups: also needed if `mirror.groups` is off, as a topic may enable it."""

READER: Final = (
    "dbsize", "eval_ro", "exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hvals",
    "mget", "pttl",
    "scan", "strlen", "ttl", "type", "xinfo|consumers", "xinfo|groups", "xinfo|stream", "xlen", "xpending",
    "xrange", "xread", "xrevrange", "zcard", "zcount", "zrange", "zrangebyscore", "zrevrange", "zrevrangebyscore",
    "zscan", "zscore",
)  # fmt: skip
"""The rights to read keys with redis-cli or with `tidegate redis check`, `keys` and `memory`."""

_PROOFS: Final = {"memory": (), "replicated": ("wait",), "fsynced": ("wait", "waitaof")}


def acl_rules(settings: Settings) -> list[str]:
    """The rules of a broker's user, without its name, `on` and password: `ACL SETUSER <name> on ><password> <rules>`.

    They first revoke all rights, so that applying them again leaves no older right. They depend on the settings
    `key_prefix`, `durability` and, in `redis_url`, the database number and Cluster.
    """
    keys = _keys(settings)
    commands = [*CONNECTION, *SCRIPTS, *FUNCTIONS, *MESSAGES, *KEYS, *HASHES, *SORTED_SETS, *STREAMS, *MIRROR]
    commands += _PROOFS[settings.durability.partition(":")[0]]
    commands += _of_topology(settings)
    rules = ["resetkeys", f"~{keys}", "resetchannels", f"&{keys}", "-@all"]
    return rules + [f"+{command}" for command in commands]


def reader_rules(settings: Settings) -> list[str]:
    """The same for a read-only user: it reads every key of the cluster, writes none and publishes nothing."""
    commands = [*CONNECTION, *READER, *_of_topology(settings)]
    return ["resetkeys", f"%R~{_keys(settings)}", "resetchannels", "-@all", *(f"+{command}" for command in commands)]


def _keys(settings: Settings) -> str:
    """The pattern of all keys and channels."""
    prefix = re.sub(r"([*?\[\]\\^])", r"\\\1", settings.key_prefix)
    return f"{prefix}:*"


def _of_topology(settings: Settings) -> list[str]:
    """Commands that only some kinds of address need."""
    topology = parse_redis_url(settings.redis_url)
    commands = ["asking", "cluster|info", "cluster|slots"] if topology.kind == "cluster" else []
    return [*commands, "select"] if topology.database else commands
