"""Makes `tidegate` a data source of every Spark session: Spark 4 asks each `pyspark_…` package for `DefaultSource`."""

from tidegate_pipeline.sources.topic_source import TopicSource as DefaultSource

__all__ = ["DefaultSource"]
