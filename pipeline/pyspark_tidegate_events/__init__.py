"""Makes `tidegate-events` a data source of every Spark session, as `pyspark_tidegate` does for topics."""

from tidegate_pipeline.sources.events import EventsSource as DefaultSource

__all__ = ["DefaultSource"]
