"""The corrupt batches of the micro-batch that a query ended with.

A source counts those of a micro-batch when Spark commits it, which Spark does as it begins the next one.
"""

from __future__ import annotations

import json

from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.jobs.progress import Figures
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources.offsets import Offsets, name_of_end, name_of_micro_batch


def count_last(figures: Figures, settings: PipelineSettings) -> int:
    """How many were quarantined in the last micro-batch that `figures` has."""
    if figures.last_range is None or settings.source.on_corrupt != "quarantine" or not settings.archive.path:
        return 0
    quarantine = Quarantine.open(settings.archive.path)
    start, end = (json.loads(text or "null") for text in figures.last_range)
    if start is None:
        return quarantine.count_ending(name_of_end(Offsets.from_json(end)))
    return quarantine.count(name_of_micro_batch(Offsets.from_json(start), Offsets.from_json(end)))
