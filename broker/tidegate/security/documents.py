"""Documents of an issuer (keys, discovery, tokens), read whole up to a limit."""

from __future__ import annotations

from typing import Final

import aiohttp

DOCUMENT_BYTES_MAX: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 16


class DocumentTooLong(ValueError):
    """The document is longer than DOCUMENT_BYTES_MAX."""

    def __init__(self) -> None:
        super().__init__(f"the document is longer than {DOCUMENT_BYTES_MAX} bytes")


async def read_document(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer. Raises DocumentTooLong."""
    document = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):  # read(n) returns what has arrived
        document += chunk
        if len(document) > DOCUMENT_BYTES_MAX:
            raise DocumentTooLong
    return bytes(document)


def read_document_file(path: str) -> bytes:
    """The content of a file. Raises DocumentTooLong, OSError."""
    with open(path, "rb") as file:
        document = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise DocumentTooLong
    return document
