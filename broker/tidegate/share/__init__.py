"""A share consumer for asyncio (KIP-932): reads topics as queues, with one acknowledgement a record.

async with ShareConsumer("localhost:9092", group="jobs", topics=["orders"]) as consumer:
    async for record in consumer:  # accepted when the next one is asked for, unless acknowledged otherwise
        await handle(record.value)
"""

from tidegate.share.connection import ShareError
from tidegate.share.consumer import Rejected, ShareConsumer
from tidegate.share.records import ShareRecord
from tidegate.share.sasl import Sasl

__all__ = ["Rejected", "Sasl", "ShareConsumer", "ShareError", "ShareRecord"]
