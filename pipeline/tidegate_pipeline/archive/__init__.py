"""The archive: closed ranges of partitions as Parquet segments, published in Redis exactly once."""
