"""The options that jobs give to `format("tidegate")` and to the sinks."""

from __future__ import annotations

from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources.access import Access
from tidegate_pipeline.sources.options import parse_options


def sink_options(settings: PipelineSettings, org: str) -> dict[str, str]:
    """The addresses of Redis and of the archive, and the organisation."""
    redis = settings.redis
    return redis.options | {"org": org, "redis.retry": str(redis.retry_s), "archive.path": settings.archive.path}


def topic_options(settings: PipelineSettings, org: str) -> dict[str, str]:
    """Options of `format("tidegate")` that come from the settings."""
    source = settings.source
    return sink_options(settings, org) | {
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "decoder": source.decoder,
        "onCorrupt": source.on_corrupt,
        "corruptLimit": str(source.corrupt_limit),
        "maxDecodedBatch": str(source.max_decoded_batch),
    }


def access_to(settings: PipelineSettings, org: str, name: str) -> Access:
    """Access to the tiers of one topic, of which `source.isolation` is read."""
    options = {**topic_options(settings, org), "subscribe": name, "isolation": settings.source.isolation}
    return Access(parse_options(options))
