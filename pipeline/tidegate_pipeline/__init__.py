"""The data pipeline on Spark: archive, cold data, tables, lag and rebalance history, replay.

A client of Redis: it reads what the brokers wrote and changes only what its scripts under `redis_scripts/archive`
change. Nothing heavy is imported here: every Python worker of Spark imports this package.
"""
