"""Verbs that put records back: `replay`, `translate-offsets`, `restore`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidegate_pipeline.cli import ConfigOption, DryRunOption, JsonOption, OrgOption, job_command, reporting
from tidegate_pipeline.jobs.job import Job

FromTopicOption = Annotated[str, typer.Option(help="Where records are read.")]
ToTopicOption = Annotated[str, typer.Option(help="Where they are written.")]
JobOption = Annotated[str | None, typer.Option(help="Name of the replay.  [default: <from>-to-<to>]")]


def replay(
    from_topic: FromTopicOption,
    to_topic: ToTopicOption,
    job: JobOption = None,
    ranges: Annotated[
        str | None,
        typer.Option("--range", help="Offsets, ends exclusive: 100-200 of all partitions, or 0:100-200,2:0-50."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="From the batches of this time on (ISO 8601, UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="Up to the batches of this time.")] = None,
    rate: Annotated[int, typer.Option(min=0, help="Records a second of the whole replay; 0: no limit.")] = 0,
    repartition: Annotated[bool, typer.Option(help="By key, as Kafka's default partitioner.")] = False,
    org: OrgOption = "default",
) -> Job:
    """Copy records of a topic to another. Each once, with a table of their target offsets."""
    from tidegate_pipeline.jobs.replay import ReplayJob
    from tidegate_pipeline.replay.record_filter import parse_record_filter

    chosen = parse_record_filter(ranges, since, until)
    return ReplayJob(from_topic, to_topic, job, chosen, repartition=repartition, records_per_s=rate, org=org)


def translate_offsets(
    group: Annotated[str, typer.Option(help="Group whose committed offsets are translated.")],
    from_topic: FromTopicOption,
    to_topic: ToTopicOption,
    job: JobOption = None,
    org: OrgOption = "default",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print offsets of a group on a replayed topic. As CSV that `tidegate group reset --from-file` takes."""
    from tidegate_pipeline.redis_access import connect
    from tidegate_pipeline.replay.translating import committed_offsets, translate_group
    from tidegate_pipeline.replay.translation import Table
    from tidegate_pipeline.settings import load
    from tidegate_pipeline.topics import find_batch_topic

    with reporting():
        settings = load(config)
        redis = settings.redis
        client, prefix = connect(redis.url, redis.password_variable), redis.key_prefix
        source, target = (find_batch_topic(client, prefix, org, name) for name in (from_topic, to_topic))
        name = job or f"{from_topic}-to-{to_topic}"
        table = Table(settings.archive.path, name, source.name, source.topic_id, target.name)
        rows = translate_group(table, committed_offsets(client, prefix, org, group, source), target)
        if as_json:
            typer.echo(json.dumps(rows))
            return
        typer.echo(",".join(rows[0]))
        for row in rows:
            typer.echo(",".join(map(str, row.values())))


def restore(
    topic: Annotated[str, typer.Option(help="The topic.")],
    from_: Annotated[int, typer.Option("--from", min=0, help="First offset that Redis will hold again.")],
    to: Annotated[int | None, typer.Option(help="End, exclusive.  [default: where Redis begins]")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only these.  [default: all]")] = None,
    anyway: Annotated[bool, typer.Option(help="Also where retention will delete it again.")] = False,
    org: OrgOption = "default",
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put archived batches back in Redis. In front of what it holds, under their own offsets."""
    from tidegate_pipeline.archive.segment_writer import ArchiveFolder
    from tidegate_pipeline.redis_access import connect
    from tidegate_pipeline.replay.restore import restore as put_back
    from tidegate_pipeline.settings import load
    from tidegate_pipeline.topics import find_batch_topic

    with reporting():
        settings = load(config)
        redis = settings.redis
        client = connect(redis.url, redis.password_variable)
        found = find_batch_topic(client, redis.key_prefix, org, topic)
        rows = put_back(
            client, redis.key_prefix, found, partition or list(range(found.partition_count)), from_, to,
            ArchiveFolder.open(settings.archive.path), retry_s=redis.retry_s, anyway=anyway, dry_run=dry_run,
        )  # fmt: skip
        if as_json:
            typer.echo(json.dumps(rows))
            return
        for row in rows:
            typer.echo("  ".join(f"{name} {value:,}" for name, value in row.items()))


def add_to(app: typer.Typer) -> None:
    """The verbs."""
    job_command(app)(replay)
    app.command()(translate_offsets)
    app.command()(restore)
