"""Parsers of bytes that clients send, each fed with anything: it returns, or raises what it says that it raises.

`python -m tests.fuzz.parsers <name> [--seconds N] [--seed N]`: guided by coverage where atheris is installed
(`pip install atheris`), else by mutating what the corpus has. A finding ends it with a traceback and the input.
`--corpus DIR` collects the inputs that cover more; `--merge DIR` then adds the fewest of them to the corpus. All else
that is given goes to libFuzzer as it is.
"""

from __future__ import annotations

import argparse
import gc
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Final
from zlib import crc32

from tests.fuzz.requests import batch, frame
from tests.support.stored_batches import sealed_batch
from tidegate.apis.registry import load_all
from tidegate.errors import KafkaError
from tidegate.protocol import consumer_blobs
from tidegate.protocol.codec import decode
from tidegate.protocol.framing import FrameError, Splitter
from tidegate.protocol.primitives import DecodeError
from tidegate.protocol.produce_request import read_produce
from tidegate.records.batch import Batch, Codec, iter_headers, parse_produced
from tidegate.records.batch_header import HEADER_BYTES
from tidegate.records.build import seal
from tidegate.records.compression import decompress
from tidegate.records.conversion import Limits, batch_of_messages
from tidegate.records.message_set import Message, build_message, build_wrapper
from tidegate.records.record import read_records
from tidegate.records.validation import RecordRules, RecordsRefused, open_and_check

CORPUS: Final = Path(__file__).with_name("corpus")
"""A directory a target: inputs that together cover what any run has covered."""
FRAME_BYTES_MAX: Final = 1 << 20
OPENED_BYTES_MAX: Final = 1 << 20
PRODUCE: Final = 0
INSTRUMENTED: Final = ("/tidegate/protocol/", "/tidegate/records/", "/kio/serial/")
"""What guides the fuzzer: all 17,500 functions in memory would take minutes to instrument."""
_RULES: Final = RecordRules(compacted=True, log_append_time=False, oldest_ms=0, newest_ms=1 << 60)
_SIZE_AT: Final = 8
_ATTRIBUTES_AT: Final = 21


def framing(data: bytes) -> None:
    """The stream of a connection, in pieces whose sizes the input says too."""
    splitter = Splitter(FRAME_BYTES_MAX)
    with suppress(FrameError):
        while data:
            piece, data = data[: data[0] + 1], data[data[0] + 1 :]
            splitter.feed(piece)
            while splitter.take() is not None and not splitter.wanted:
                continue
            if splitter.wanted:
                return


def requests(data: bytes) -> None:
    """One request's body, of an API and version that the input says."""
    apis = list(load_all().values())
    if len(data) < 2:
        return
    api = apis[data[0] % len(apis)]
    version = api.first + data[1] % (api.last + 1 - api.first)
    with suppress(DecodeError):
        if api.key == PRODUCE and version >= 3:
            read_produce(version, memoryview(data)[2:])
        elif api.key != PRODUCE:
            decode(api.key, version, data[2:])


def batches(data: bytes) -> None:
    """One produced batch, its length and CRC put right, down to its records."""
    if len(data) < HEADER_BYTES:
        return
    whole = bytearray(data)
    struct.pack_into(">qi", whole, 0, 0, len(whole) - 12)
    whole[16] = 2
    with suppress(KafkaError, RecordsRefused):
        parsed = parse_produced(bytes(seal(whole)), 9, FRAME_BYTES_MAX)
        read_records(open_and_check(parsed, _RULES, OPENED_BYTES_MAX), OPENED_BYTES_MAX)


def records(data: bytes) -> None:
    """An area of records inside a sound batch of any codec."""
    if len(data) < 2:
        return
    codec, count = list(Codec)[data[0] % len(Codec)], data[1]
    whole = sealed_batch(data[2:], codec, record_count=count)
    with suppress(KafkaError, RecordsRefused):
        open_and_check(parse_produced(whole, 9, FRAME_BYTES_MAX), _RULES, OPENED_BYTES_MAX)


def codecs(data: bytes) -> None:
    """A compressed area of any codec, as it came."""
    if data:
        with suppress(KafkaError):
            decompress(list(Codec)[data[0] % len(Codec)], data[1:], OPENED_BYTES_MAX)


def stored(data: bytes) -> None:
    """What a log's entry holds, read by those who read logs."""
    with suppress(KafkaError):
        for one in iter_headers(data):
            assert isinstance(one, Batch)


def message_sets(data: bytes) -> None:
    """What clients before 0.11 produce, the CRCs of its messages put right, down to the batch made from it."""
    whole, at = bytearray(data), 0
    while len(whole) - at >= 16:
        (size,) = struct.unpack_from(">i", whole, at + 8)
        end = at + 12 + size
        if size < 4 or end > len(whole):
            break
        struct.pack_into(">I", whole, at + 12, crc32(whole[at + 16 : end]))
        at = end
    with suppress(KafkaError, RecordsRefused):
        batch_of_messages(memoryview(whole), _RULES, FRAME_BYTES_MAX, 0, Limits(OPENED_BYTES_MAX))


def blobs(data: bytes) -> None:
    """Subscriptions and assignments of consumers, which are theirs: None says that they are not readable."""
    consumer_blobs.subscribed_topics(data)
    consumer_blobs.assigned_partitions(data)
    consumer_blobs.owners_text([("member", data)])


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    one.__name__: one for one in (framing, requests, batches, records, codecs, stored, message_sets, blobs)
}


def seeds(name: str, rng: random.Random) -> list[bytes]:
    """Inputs to begin with: what the product itself would send."""
    made = [batch(rng) for _ in range(40)]
    match name:
        case "batches" | "stored":
            return made
        case "codecs":
            return [
                bytes([one[_ATTRIBUTES_AT + 1] & 7]) + one[HEADER_BYTES:] for one in made if len(one) > HEADER_BYTES
            ]
        case "records":
            return [bytes([number % 5, 1]) + one[HEADER_BYTES:] for number, one in enumerate(made)]
        case "requests" | "framing":
            found = []
            for place, api in enumerate(load_all().values()):
                whole, _ = frame(api.key, api.last, rng)
                found.append(whole if name == "framing" else bytes([place, api.last - api.first]) + whole[14:])
            return found
        case "blobs":
            return [
                consumer_blobs.write_subscription(["orders", "payments"]),
                consumer_blobs.write_assignment({"orders": [0, 1, 2], "payments": []}),
            ]
    plain = [Message(number, 1, b"key", b"value") for number in range(3)]
    wrapped = [build_wrapper(plain, magic, codec) for magic in (0, 1) for codec in range(1, Codec.ZSTD)]
    return [build_message(plain[0], 0), b"".join(build_message(one, 1) for one in plain), *wrapped]


def corpus_inputs(name: str) -> list[bytes]:
    """What is checked in for a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with a few bytes changed, taken away, added or repeated."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                del changed[at : at + rng.randrange(1, 8)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(1, 8))
            case _:
                changed[at:at] = changed[max(0, at - rng.randrange(1, 32)) : at]
    return bytes(changed)


def run_mutations(name: str, seconds: float, seed: int) -> int:
    """Without atheris: mutate for so long; how many inputs there were. Raises what the target must not."""
    rng, target = random.Random(seed), TARGETS[name]
    pool, count, ends = seeds(name, rng) + corpus_inputs(name), 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        data = mutated(rng.choice(pool), rng)
        try:
            target(data)
        except Exception:
            print(f"{name} fails with {data.hex()}", file=sys.stderr)
            raise
        count += 1
        if rng.random() < 0.01:
            pool.append(data[:4_096])
    return count


def functions_of(places: Sequence[str]) -> list[FunctionType]:
    """Every function, closures too, whose file is below one of these paths of packages."""
    every = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
    return [one for one in every if any(place in one.__code__.co_filename for place in places)]


def run_atheris(name: str, arguments: Sequence[str]) -> None:
    """Guided by coverage; ends the process. Raises ImportError where atheris is not installed."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    for function in functions_of(INSTRUMENTED):
        atheris.instrument_func(function)
    command = f"{sys.executable} -m tests.fuzz.parsers {name}"  # libFuzzer runs it again for each step of a merge
    atheris.Setup([command, *arguments], TARGETS[name])
    atheris.Fuzz()


def _fuzzing(name: str, seconds: float, seed: int, found: Path) -> list[str]:
    """The arguments of libFuzzer, which adds its inputs to the first directory."""
    found.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name, random.Random(seed))):
        (found / f"seed-{number}").write_bytes(data)
    limits = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=4096", "-print_final_stats=1"]
    return [*limits, str(found), str(CORPUS / name)]


def _merging(name: str, found: Path) -> list[str]:
    return ["-set_cover_merge=1", "-use_counters=0", str(CORPUS / name), str(found)]


def main(arguments: Sequence[str] | None = None) -> int:
    options, others = _options(arguments)
    name = options.target
    if options.merge is not None:
        others = _merging(name, options.merge)
    elif not others:
        found = options.corpus or Path(tempfile.mkdtemp(prefix="tidegate-fuzz-"))
        others = _fuzzing(name, options.seconds, options.seed, found)
    try:
        run_atheris(name, others)
    except ImportError:
        if options.merge is not None:
            raise
        print("atheris is not installed: mutations without coverage", file=sys.stderr)
    print(f"{name}: {run_mutations(name, options.seconds, options.seed)} executions")
    return 0


def _options(arguments: Sequence[str] | None) -> tuple[Any, list[str]]:
    """This module's own, and libFuzzer's, which are passed on as they are."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.parsers", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn (default 1)")
    parser.add_argument("--corpus", type=Path, help="directory that atheris keeps its inputs in")
    parser.add_argument("--merge", type=Path, help="add what such a directory covers more to the corpus")
    return parser.parse_known_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
