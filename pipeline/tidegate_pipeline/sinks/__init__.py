"""Sinks of Spark: records into topics, through the brokers."""
