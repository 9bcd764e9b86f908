"""`tidegate redis ...`: server check, memory by owner, key inspection, ACL rules, and arbitrary commands."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tidegate.cli.command_group import command_group
from tidegate.cli.failures import BAD_NEWS, DONE, FAILED, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places
from tidegate.diagnosis.formatting import counted, size
from tidegate.telemetry.visible import visible

_OPTIONS_OF_THE_GROUP: Final = ("-h", "--help")


class _OrRun(TyperGroup):
    """Runs `tidegate redis HGETALL key` as `tidegate redis run HGETALL key`: an unknown subcommand is a Redis command.

    Names are case-sensitive: `keys` is Tidegate's subcommand, `KEYS` is Redis's.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _OPTIONS_OF_THE_GROUP:
            args = ["run", *args]
        return super().parse_args(ctx, args)


redis = command_group(
    "redis",
    "Check Redis, show its memory and its keys, or run a Redis command (redis COMMAND).",
    _OrRun,
)


@redis.command()
@to_places
def check(server: RedisServer, output: Output = Form.TABLE) -> None:
    """Check the server: version, role, eviction, memory, persistence, replicas, rights, latency.

    Exit code 0: fine; 1: warnings; 2: problems. `tidegate doctor` looks at the brokers' addresses too.
    """
    from tidegate.cli.doctor import probe_redis, redis_checks
    from tidegate.cli.doctor.finding import Severity, by_severity
    from tidegate.cli.output import write_findings, write_rows, write_whole

    probe = probe_redis.probe(server)
    findings = by_severity(redis_checks.judge(probe, probe.cluster_id))
    facts = [probe_redis.facts(one) for one in probe.servers]
    reported = [one.described() for one in findings]
    if output in (Form.JSON, Form.YAML):
        about = {"url": probe.where, "user": probe.user or None, "cluster_id": probe.cluster_id}
        write_whole(output, {**about, "servers": facts, "findings": reported})
    elif output is Form.CSV:
        names = ("severity", "kind", "where", "sentence", "evidence", "advice")
        write_rows(output, [Column(name, name.upper()) for name in names], reported)
    else:
        if facts:
            write_rows(output, _SERVERS, facts)
            typer.echo()
        bad = sum(one["severity"] != "note" for one in reported)
        cluster = f"cluster {probe.cluster_id} at " if probe.cluster_id else ""
        outcome = f"{counted(bad, 'finding')} to fix" if bad else "nothing to fix"
        write_findings(f"{cluster}{probe.where}: {outcome}", reported)
    worst = min((one.severity for one in findings), default=Severity.NOTE)
    raise typer.Exit({Severity.NOTE: DONE, Severity.WARNING: BAD_NEWS, Severity.PROBLEM: FAILED}[worst])


_SERVERS = [
    Column("address", "SERVER"),
    Column("version", "VERSION"),
    Column("role", "ROLE"),
    Column("used_bytes", "USED", size, right=True),
    Column("max_bytes", "LIMIT", lambda value: size(value) if value else "none", right=True),
    Column("policy", "EVICTION"),
    Column("aof", "AOF", lambda value: "on" if value else "off"),
    Column("replicas", "REPLICAS", right=True),
    Column("scripts", "SCRIPTS", lambda value: value or "unknown"),
    Column("median_ping_ms", "PING MS", right=True),
]


@redis.command()
@to_places
def memory(
    server: RedisServer,
    by: Annotated[str, typer.Option(help="org, topic, group or kind; JSON and YAML contain all of them.")] = "",
    top: Annotated[
        int, typer.Option(min=1, help="Number of rows per table, largest first; JSON and YAML contain all.")
    ] = 10,
    output: Output = Form.TABLE,
) -> None:
    """Show memory by organisation, topic, group and kind of key. Scans every key, in small steps."""
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.client.redis_memory import DIMENSIONS, measure
    from tidegate.cli.output import write_rows, write_whole
    from tidegate.cli.progress import progress

    if by and by not in DIMENSIONS:
        raise CommandFailed(f"--by {by}: not {', '.join(DIMENSIONS)}")
    with connected(server) as client, progress("keys") as reported:
        found = measure(client, server.prefix, reported)
    if output in (Form.JSON, Form.YAML):
        sums = {"keys": found.total.keys, "bytes": found.total.bytes}
        outside = {"keys": found.strangers.keys, "bytes": found.strangers.bytes}
        about = {"used_bytes": found.used, "max_bytes": found.limit, "ours": sums, "not_known": outside}
        write_whole(output, {**about, **{f"by_{name}": found.rows(name) for name in DIMENSIONS}})
        return
    if output is Form.TABLE:
        limit = f"limit {size(found.limit)}" if found.limit else "no limit"
        typer.echo(
            f"Tidegate {size(found.total.bytes)} in {found.total.keys:,} keys; server {size(found.used)}; {limit}"
        )
    for name in (by,) if by else DIMENSIONS if output is Form.TABLE else ("kind",):
        columns = [
            Column(name, name.upper()),
            Column("keys", "KEYS", lambda value: f"{value:,}", right=True),
            Column("bytes", "MEMORY", size, right=True),
            Column("share", "SHARE", lambda value: f"{value:.1%}", right=True),
        ]
        if output is Form.TABLE:
            typer.echo()
        write_rows(output, columns, found.rows(name)[:top])


@redis.command()
@to_places
def keys(
    server: RedisServer,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="A key, or a pattern with * of several.  [default: list the kinds of keys]"
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, max=100_000, help="Maximum number of keys of a pattern.")
    ] = 100,
    output: Output = Form.TABLE,
) -> None:
    """Describe a key: its kind, its topic or group, its decoded content.

    Quote the name: it contains braces and colons. Its prefix may be left out.
    """
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.client.redis_keys import KINDS, classify
    from tidegate.cli.client.redis_memory import keys_like
    from tidegate.cli.output import write_rows

    if name is None:
        rows = [{"kind": k.name, "type": k.type, "key": f"{server.prefix}:{k.form}", "holds": k.holds} for k in KINDS]
        write_rows(output, [Column(part, part.upper()) for part in ("kind", "type", "key", "holds")], rows)
        return
    with connected(server) as client:
        if "*" in name or "?" in name:
            rows = []
            for one in keys_like(client, server.prefix, name, count):
                key = classify(one, server.prefix)
                about: dict[str, Any] = dict(key.of()) if key else {}
                rows.append({**about, "key": one, "kind": key.kind.name if key else ""})
            parts = ("kind", "org", "topic", "partition", "group", "key")
            write_rows(output, [Column(part, part.upper()) for part in parts], rows)
        else:
            _explain(client, server, name, output)


@redis.command()
@to_places
def log(
    server: RedisServer,
    topic: Annotated[str, typer.Argument(help="Topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="Partition.")] = 0,
    org: Annotated[str, typer.Option(help="Organisation of the topic.")] = "default",
    output: Output = Form.TABLE,
) -> None:
    """The stream of a partition, its format, and how many entries it has.

    Redis programs read and write the stream of a topic of format record (docs/record-topics.md).
    """
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_one
    from tidegate.store.keys import ClusterKeys, LogKeys
    from tidegate.topics.model import Record

    with connected(server) as client:
        text = client.hget(ClusterKeys(server.prefix).topics, f"{org}/{topic}")
        record = Record.parse(text) if text else None
        if record is None or partition >= record.partitions:
            raise CommandFailed(f"there is no partition {partition} of topic {org}/{topic}")
        keys = LogKeys.of(server.prefix, org, topic, partition, record.topic_id.hex, record.format)
        found = {
            "key": keys.log, "format": record.format, "entries": client.xlen(keys.log),
            "groups": client.xinfo_stream(keys.log)["groups"] if client.exists(keys.log) else 0,
        }  # fmt: skip
    write_one(output, found, [(name, str(value)) for name, value in found.items()])


def _explain(client: Any, server: RedisServer, name: str, output: Form) -> None:
    from tidegate.cli.client.redis_keys import classify
    from tidegate.cli.commands.redis_showing import held
    from tidegate.cli.output import write_one

    key = classify(name, server.prefix) or classify(f"{server.prefix}:{name}", server.prefix)
    if key is None:
        raise CommandFailed(
            f"{name} is not a key of Tidegate (prefix {server.prefix}; `tidegate redis keys` lists the kinds)"
        )
    found = held(client, key)
    if found is None:
        raise CommandFailed(f"there is no key {key.name} ({key.kind.name}: {key.kind.holds})")
    shown = [(name, str(found[name])) for name in ("key", "kind", "holds", "type")]
    shown += [*found["of"].items(), ("memory", size(found["bytes"] or 0)), ("elements", f"{found['count']:,}")]
    if found["expires_in_ms"] is not None:
        shown.append(("expires in", f"{found['expires_in_ms'] / 1000:,.0f} s"))
    write_one(output, found, shown)
    if output is Form.TABLE:
        typer.echo()
        for element in found["elements"]:
            typer.echo("  " + "  ".join(_part(value) for value in element.values()))
        if found["count"] > len(found["elements"]):
            typer.echo(f"  … {found['count'] - len(found['elements']):,} more")


def _part(value: Any) -> str:
    import json

    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


@redis.command()
@to_places
def acl(
    server: RedisServer,
    user: Annotated[str, typer.Option(help="The brokers' user.")] = "tidegate",
    reader: Annotated[str, typer.Option(help="User for people, who may read every key and write none.")] = (
        "tidegate-reader"
    ),
    file: Annotated[bool, typer.Option("--file", help="Print a line of an ACL file instead of a command.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Print the minimum ACL rules of a broker's user with these settings (prefix, durability, address), and a reader's.

    The second user, for people, reads every key and writes none, because one XADD by hand stops a partition. Nothing
    is sent to Redis. Replace PASSWORD by a password, or by `#` and its SHA-256.
    """
    from tidegate.cli.output import write_one
    from tidegate.cluster.acl import acl_rules, reader_rules

    users = [
        {
            "user": name,
            "rules": rules,
            "line": f"{'user' if file else 'ACL SETUSER'} {name} on >PASSWORD {' '.join(rules)}",
        }
        for name, rules in ((user, acl_rules(server.settings)), (reader, reader_rules(server.settings)))
    ]
    if output is Form.TABLE:
        for one in users:
            typer.echo(one["line"])
    else:
        write_one(output, {**users[0], "reader": users[1]}, [])


@redis.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@to_places
def run(
    command: Annotated[list[str], typer.Argument(help="A Redis command and its arguments.", metavar="COMMAND")],
    server: RedisServer,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the bytes, as redis-cli writes to a pipe.")] = False,
) -> None:
    """Send one command to Redis and print the reply as redis-cli does. `tidegate redis COMMAND` does the same.

    Exit code 1 for an error reply.
    """
    from tidegate.cli.client import redis_command
    from tidegate.errors import StoreUnavailable
    from tidegate.store import tls
    from tidegate.store.addresses import without_password
    from tidegate.store.primary import find_primary

    if server.missing:
        raise CommandFailed(server.missing)
    failed = False
    try:
        for reply in redis_command.replies(asyncio.run(find_primary(server.settings)), command):
            failed = isinstance(reply, redis_command.Failure)
            if raw:
                sys.stdout.buffer.write(redis_command.raw(reply) + b"\n")
                sys.stdout.buffer.flush()
            else:
                typer.echo(redis_command.shown(reply))
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        raise
    except (OSError, StoreUnavailable) as error:
        hint = "" if server.given else "; no `tidegate dev` runs"
        where = without_password(server.url)
        raise CommandFailed(f"Redis is not reachable at {where}: {tls.reason(error)}{hint}") from None
    if failed:
        raise typer.Exit(BAD_NEWS)
