"""Answer a Fetch of v0-3: the batches that were read are sent as message sets (`records.conversion`).

v0 and v1 get magic 0, v2 and v3 magic 1. Small uncompressed batches are converted on the event loop, others in a
thread; the connection starts no later Fetch meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.fetch_sessions import Wanted
from tidegate.apis.mirroring import note_fetched
from tidegate.errors import KafkaError
from tidegate.log.offload import CONVERTED
from tidegate.protocol import old_responses
from tidegate.protocol.old_responses import FetchedPartition
from tidegate.records.batch import iter_headers
from tidegate.records.batch_header import ATTRIBUTES_LOW_AT, CONTROL, HEADER_BYTES
from tidegate.records.conversion import MessageSet, message_set

logger = structlog.get_logger()

INLINE_BYTES_MAX: Final = 16 * 1024
"""Bytes of uncompressed batches of one partition that are converted on the event loop: about a ms."""
_MAGIC_1_FROM: Final = 2
_MAX_BYTES_FROM: Final = 3
"""Version from which on a request has a limit for the whole response, and gets one whole message at least (KIP-74)."""
_UNKNOWN: Final = ErrorCode.unknown_server_error.value


def are_markers(buffers: Sequence[bytes | bytearray | memoryview]) -> bool:
    """Whether all batches are control batches, which have no messages. `buffers` as a log returns them, not empty."""
    first = buffers[0]
    attributes = buffers[1][ATTRIBUTES_LOW_AT - len(first)] if len(first) < HEADER_BYTES else first[ATTRIBUTES_LOW_AT]
    return bool(attributes & CONTROL) and all(batch.is_control for batch in iter_headers(b"".join(buffers)))


async def answer_message_sets(call: Call, reported: Sequence[Wanted], max_bytes: int) -> None:
    """Convert what was read, and reply. `max_bytes` limits the response from v3 on."""
    try:
        body = await _message_sets(call, reported, max_bytes)
    except Exception:
        logger.exception("fetch_failed")
        call.close(f"Fetch v{call.version} failed")
    else:
        call.reply(body)


async def _message_sets(call: Call, reported: Sequence[Wanted], max_bytes: int) -> bytes:
    topics: dict[str | bytes, list[FetchedPartition]] = {}
    left = max_bytes
    for wanted in reported:
        partition = await _partition(
            call, wanted, left, whole_first=call.version >= _MAX_BYTES_FROM and left == max_bytes
        )
        left -= len(partition[3]) if call.version >= _MAX_BYTES_FROM else 0
        topics.setdefault(wanted.key, []).append(partition)
    note_fetched(call, reported)
    call.context.usage.fetched(
        (wanted.log.topic, wanted.result.size)
        for wanted in reported
        if wanted.log is not None and wanted.result is not None and wanted.result.size
    )
    return old_responses.fetch(call.version, list(topics.items()))


async def _partition(call: Call, wanted: Wanted, left: int, *, whole_first: bool) -> FetchedPartition:
    result = wanted.result
    assert result is not None
    if not result.size:
        return result.index, result.error_code, result.high_watermark, b""
    bytes_max = max(min(wanted.bytes_max, left), 0)
    try:
        found = await _converted(call, wanted, bytes_max, whole_first)
    except Exception as error:
        if not isinstance(error, KafkaError):
            logger.exception("fetch_failed")
        result.size = 0
        return result.index, error.code.value if isinstance(error, KafkaError) else _UNKNOWN, -1, b""
    wanted.end_offset = found.next_offset
    wanted.bases = [base for base in wanted.bases if base < found.next_offset]
    result.size = len(found.data)
    return result.index, ErrorCode.none.value, result.high_watermark, found.data


async def _converted(call: Call, wanted: Wanted, bytes_max: int, whole_first: bool) -> MessageSet:
    assert wanted.result is not None
    data, magic = b"".join(wanted.result.buffers), int(call.version >= _MAGIC_1_FROM)

    def convert() -> MessageSet:
        return message_set(data, magic, wanted.offset, bytes_max, whole_first=whole_first)

    if len(data) > INLINE_BYTES_MAX or any(batch.codec for batch in iter_headers(data)):
        return await CONVERTED.run(convert)
    return convert()
