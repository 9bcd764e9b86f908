"""Decoded tables: Parquet by Spark, Delta by a writer of our own, each record once."""
