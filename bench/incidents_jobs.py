"""`python -m bench.incidents_jobs SETTINGS.toml`: the jobs over group history, one after the other in one session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tidegate_pipeline.jobs.commits import CommitsJob
from tidegate_pipeline.jobs.job import Job, JobContext
from tidegate_pipeline.jobs.lag import LagJob
from tidegate_pipeline.jobs.storms import StormsJob
from tidegate_pipeline.jobs.timeline import TimelineJob
from tidegate_pipeline.jobs.usage import UsageJob
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.session import spark_session
from tidegate_pipeline.settings import load

JOBS: Final[tuple[type[Job], ...]] = (LagJob, TimelineJob, StormsJob, CommitsJob, UsageJob)
_TRIES: Final = 5
_LATE: Final = "Python worker failed to connect back"
"""Spark gives a Python process 10 s to start, by no setting more. On a busy machine the query begins where it was."""


def run(job: Job, context: JobContext) -> None:
    """One job to its end. Raises StreamingQueryException."""
    from pyspark.errors import StreamingQueryException

    for left in reversed(range(_TRIES)):
        try:
            job.start(context).awaitTermination()
        except StreamingQueryException as error:
            if not left or _LATE not in str(error):
                raise
            print(f"{job.name}: {_LATE}; again")
        else:
            break
    print(f"{job.name}: {job.finish(context)}", flush=True)


def main(config: Path) -> None:
    """All of them."""
    settings = load(config)
    spark = spark_session("incidents", settings.spark)
    for made in JOBS:
        job = made()
        checkpoint = f"{settings.checkpoint.path}/{job.query_name}"
        run(job, JobContext(spark, settings, connect(settings.redis.url), checkpoint, {"availableNow": True}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
