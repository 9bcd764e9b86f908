"""The ends of a batch query up to the latest offsets, remembered in Redis: a task that runs again reads the same rows.

Spark repeats tasks: one that failed, one of an executor that was lost, one that is speculated about. If the second
attempt read more, it could put rows where reducers do not ask for them any more. Spark keeps one plan for all queries
of a DataFrame, so the ends are not in it: the first attempt of a task writes what it found behind the plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Final

import redis

from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import retry_while_unavailable
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.planning import PlannedRange
from tidegate_pipeline.sources.tiers import Tier

_KEPT_S: Final = 24 * 3600
"""For how long after a task began it may be repeated."""


def running_query() -> str | None:
    """What Spark calls the query of this task: the same for all its attempts, another for the next query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    execution = context.getLocalProperty("spark.sql.execution.id")
    return execution or f"stage-{context.stageId()}"  # of an RDD: a stage that is repeated keeps its number


def remembered(
    access: Access, plan: str, task: int, find: Callable[[], Iterable[PlannedRange]]
) -> Iterable[PlannedRange]:
    """What the first attempt of a task found with `find`; `plan` names the plan, `task` is its number in it.

    Nothing where Redis's user may not write it, or not read it: then all queries of the plan end where it ends.
    Raises PipelineError.
    """
    query = running_query()
    if query is None:
        return find()
    options = access.options
    key = ClusterKeys(options.key_prefix).query_ends(f"{plan}-{query}-{task}")
    try:
        known = retry_while_unavailable(lambda: access.client.get(key), options.retry_s)
        if known is None:
            found = json.dumps([asdict(range_) for range_ in find()])
            known = retry_while_unavailable(lambda: _write(access, key, found), options.retry_s) or found
    except redis.exceptions.NoPermissionError:
        return []
    return [PlannedRange(**{**fields, "tier": Tier(fields["tier"])}) for fields in json.loads(known)]


def _write(access: Access, key: str, found: str) -> bytes | None:
    """Write what was found, unless another attempt did, whose is returned; one command, which is allowed or not."""
    try:
        known: bytes | None = access.client.set(key, found, ex=_KEPT_S, nx=True, get=True)
        return known
    except (redis.ReadOnlyError, redis.exceptions.OutOfMemoryError) as error:
        raise PipelineError(
            f"Redis does not take the latest offsets of a query, which repeated tasks need: {error}; endingOffsets or"
            " endingTimestamp fix the end, and nothing is written"
        ) from error
