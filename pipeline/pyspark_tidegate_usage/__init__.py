"""Makes `tidegate-usage` a data source of every Spark session, as `pyspark_tidegate` does for topics."""

from tidegate_pipeline.sources.usage import UsageSource as DefaultSource

__all__ = ["DefaultSource"]
