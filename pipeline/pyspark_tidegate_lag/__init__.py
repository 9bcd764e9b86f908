"""Makes `tidegate-lag` a data source of every Spark session, as `pyspark_tidegate` does for topics."""

from tidegate_pipeline.sources.lag import LagSource as DefaultSource

__all__ = ["DefaultSource"]
