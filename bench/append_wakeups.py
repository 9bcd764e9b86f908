"""What it costs to wake waiting fetches: PUBLISH behind each XADD, or one blocking XREAD over all partitions.

`python -m bench.append_wakeups redis://127.0.0.1:6379/0` on an empty server. One writer, paced; the one who
waits is the writer's own process (`own`: it knows its appends already) or another (`other`). CPU in
microseconds per append: of the server (INFO cpu), the writer and the listener.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from tidegate.settings import Settings
from tidegate.store.store import Store

SECONDS = 3.0
VALUE = b"x" * 1_000
TICK_S = 0.002


async def _server_cpu_s(store: Store) -> float:
    info = str(await store.command("INFO", "cpu"))
    facts = dict(line.split(":", 1) for line in info.replace("\\r\\n", "\n").splitlines() if ":" in line)
    return float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])


class Listener:
    """Waits for appends on all partitions, by messages or by XREAD, and reads what was appended."""

    def __init__(self, store: Store, how: str, partitions: int, own: bool) -> None:
        self.store = store
        self.how = how
        self.own = own
        self.ends = [0] * partitions
        self.observing: set[int] = set()
        self.woken = 0

    async def start(self) -> None:
        """Begin to wait."""
        if self.how == "publish":
            acks = [self.store.pubsub.listen(f"wake:{i}", self._listener(i)) for i in range(len(self.ends))]
            await asyncio.gather(*acks)
        elif self.how == "xread":
            self._read()

    def _listener(self, place: int) -> Any:
        def on_message(payload: bytes | None) -> None:
            self.woken += 1
            if not self.own and place not in self.observing:  # another broker's append: read it
                self.observing.add(place)
                asyncio.get_running_loop().call_soon(self._observe, place)

        return on_message

    def _observe(self, place: int) -> None:
        self.observing.discard(place)
        command = ["XRANGE", f"log:{place}", f"{self.ends[place]}-0", "+", "COUNT", "64"]

        def answered(reply: Any) -> None:
            if reply and not isinstance(reply, Exception):
                self.ends[place] = max(self.ends[place], int(reply[-1][0].split(b"-")[0]) + 1)

        self.store.metadata_node.data_in.send(command, answered)

    def _read(self) -> None:
        streams = [f"log:{i}" for i in range(len(self.ends))]
        ids = [f"{end}-0" for end in self.ends]
        command = ["XREAD", "COUNT", "64", "BLOCK", "10000", "STREAMS", *streams, *ids]

        def answered(reply: Any) -> None:
            if isinstance(reply, Exception):
                return
            for stream, entries in (reply or {}).items():
                self.woken += len(entries)
                self.ends[int(stream.split(b":")[1])] = int(entries[-1][0].split(b"-")[0]) + 1
            self._read()

        self.store.metadata_node.durable.send(command, answered, 20_000)


async def _write(store: Store, how: str, partitions: int, rate: int) -> int:
    ends, sent, began, iteration = [0] * partitions, 0, time.monotonic(), 0
    while (now := time.monotonic()) - began < SECONDS:
        for _ in range(int((now - began) * rate) - sent):
            place = iteration % partitions
            iteration += 1
            sent += 1
            store.metadata_node.data_out.send(["XADD", f"log:{place}", f"{ends[place]}-1", "b", VALUE], lambda _: None)
            ends[place] += 1
            if how == "publish":
                store.metadata_node.data_out.send(["PUBLISH", f"wake:{place}", f"{ends[place]}:w"], lambda _: None)
        await asyncio.sleep(TICK_S)
    await store.metadata_node.data_out.call("PING")
    return sent


def _listen_elsewhere(url: str, how: str, partitions: int, pipe: Connection) -> None:
    async def listen() -> None:
        store = Store(Settings.model_validate({"redis_url": url}))
        await store.start()
        listener = Listener(store, how, partitions, own=False)
        await listener.start()
        await asyncio.sleep(0.3)
        began = time.process_time()
        pipe.send("ready")
        while not pipe.poll():
            await asyncio.sleep(0.05)
        pipe.send((time.process_time() - began, listener.woken))
        await store.close()

    uvloop.run(listen())


async def _run(url: str, how: str, partitions: int, own: bool, rate: int) -> str:
    store = Store(Settings.model_validate({"redis_url": url}))
    await store.start()
    await store.command("FLUSHALL")
    ours, theirs = multiprocessing.Pipe()
    process = None
    if own:
        await Listener(store, how, partitions, own=True).start()
        await asyncio.sleep(0.3)
    elif how != "none":
        process = multiprocessing.get_context("spawn").Process(
            target=_listen_elsewhere, args=(url, how, partitions, theirs)
        )
        process.start()
        await asyncio.to_thread(ours.recv)
    server_s, writer_s = await _server_cpu_s(store), time.process_time()
    sent = await _write(store, how, partitions, rate)
    server_s, writer_s = await _server_cpu_s(store) - server_s, time.process_time() - writer_s
    listener_s = 0.0
    if process is not None:
        ours.send("stop")
        listener_s, _ = await asyncio.to_thread(ours.recv)
        process.join()
    await store.close()
    figures = " | ".join(f"{seconds / sent * 1e6:.1f}" for seconds in (server_s, writer_s, listener_s))
    return f"| {partitions} | {'own' if own else 'other'} | {how} | {sent / SECONDS:.0f} | {figures} |"


def main() -> None:
    """Print the table."""
    url, rate = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    print("| partitions | who waits | how | appends/s | server us | writer us | listener us |")
    print("|---|---|---|---|---|---|---|")
    for partitions in (1, 1_000):
        for own, how in ((True, "none"), (True, "publish"), (True, "xread"), (False, "publish"), (False, "xread")):
            print(uvloop.run(_run(url, how, partitions, own, rate)))


if __name__ == "__main__":
    main()
