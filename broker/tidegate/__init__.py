"""Tidegate's broker: interchangeable asyncio processes that speak Kafka and keep everything in Redis."""

__version__ = "0.1.0"
