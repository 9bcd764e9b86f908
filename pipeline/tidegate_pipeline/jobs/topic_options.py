"""What jobs give to `format("tidegate")` and to our sinks."""

from __future__ import annotations

from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.options import parse_options


def topic_options(settings: PipelineSettings, org: str) -> dict[str, str]:
    """The way to Redis and the archive."""
    redis, source = settings.redis, settings.source
    return redis.options | {
        "org": org,
        "redis.retry": str(redis.retry_s),
        "archive.path": settings.archive.path,
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "decoder": source.decoder,
        "corruptLimit": str(source.corrupt_limit),
        "maxDecodedBatch": str(source.max_decoded_batch),
    }


def access_to(settings: PipelineSettings, org: str, name: str) -> Access:
    """A way to look at the topic's tiers."""
    return Access(parse_options({**topic_options(settings, org), "subscribe": name}))
