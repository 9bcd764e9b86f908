"""Sample load: a topic `orders` and a group `billing` that is too slow for it. Until Ctrl-C, or SECONDS.

.venv/bin/python docs/shop.py [BOOTSTRAP [SECONDS]]
"""

import asyncio
import sys
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def order(bootstrap: str) -> None:
    """A hundred orders a second."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        number = 0
        while True:
            await producer.send("orders", f"order {number}".encode(), key=f"customer {number % 100}".encode())
            number += 1
            await asyncio.sleep(0.01)


async def bill(bootstrap: str) -> None:
    """Half as many."""
    options = {"group_id": "billing", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 1_000}
    async with AIOKafkaConsumer("orders", bootstrap_servers=bootstrap, **options) as consumer:
        async for _ in consumer:
            await asyncio.sleep(0.02)


async def main(bootstrap: str = "127.0.0.1:9092", seconds: str = "86400") -> None:
    """Both."""
    with suppress(TimeoutError):
        async with asyncio.timeout(float(seconds)):
            await asyncio.gather(order(bootstrap), bill(bootstrap))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
