"""`tidegate redis COMMAND ...`: sends one command to Redis and prints its reply in redis-cli's format.

RESP2 on a plain socket: the format distinguishes simple strings from bulk strings, which client libraries do not.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from tidegate.store.addresses import Address
from tidegate.store.slots import parse_refusal
from tidegate.telemetry.visible import visible

_CONNECT_TIMEOUT_S: Final = 3.0
_STREAMING: Final = frozenset({"subscribe", "psubscribe", "ssubscribe", "monitor"})
_MOVES_MAX: Final = 5
_ESCAPES: Final = {
    0x5C: "\\\\",
    0x22: '\\"',
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
    0x07: "\\a",
    0x08: "\\b",
}


@dataclass(frozen=True, slots=True)
class Status:
    """A RESP2 simple string such as OK."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A RESP2 error reply."""

    text: str


Reply = Status | Failure | int | bytes | None | list["Reply"]


def replies(address: Address, command: Sequence[str], moves: int = _MOVES_MAX) -> Iterator[Reply]:
    """Send one command and yield its reply, or replies without end (SUBSCRIBE, MONITOR). Raises OSError.

    In Redis Cluster it goes to the node of the command's key.
    """
    with _connect(address) as sock, sock.makefile("rb") as stream:
        login = _login(address)
        sock.sendall(b"".join(_packed(words) for words in [*login, command]))
        for _ in login:
            greeting = read_reply(stream)
            if isinstance(greeting, Failure):
                yield greeting
                return
        sock.settimeout(None)
        first = read_reply(stream)
        if isinstance(first, Failure) and first.text.startswith("MOVED ") and moves:
            host, port = parse_refusal(first.text, address.host).place or ("", 0)
            yield from replies(replace(address, host=host, port=port), command, moves - 1)
            return
        yield first
        while command[0].lower() in _STREAMING:
            yield read_reply(stream)


def _connect(address: Address) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), timeout=_CONNECT_TIMEOUT_S)
    return address.tls.wrap_socket(sock, server_hostname=address.host) if address.tls is not None else sock


def _login(address: Address) -> list[list[str]]:
    commands = []
    if address.password is not None:
        commands.append(["AUTH", *([address.username] if address.username else []), address.password])
    if address.database:
        commands.append(["SELECT", str(address.database)])
    return commands


def _packed(words: Sequence[str]) -> bytes:
    parts = [word.encode("utf-8", "surrogateescape") for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def read_reply(stream: BinaryIO) -> Reply:
    """Decode one RESP2 reply. Raises OSError when the connection ends inside it."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return Status(rest.decode("utf-8", "replace"))
    if kind == b"-":
        return Failure(rest.decode("utf-8", "replace"))
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return _bulk(stream, int(rest))
    if kind == b"*":
        count = int(rest)
        return None if count < 0 else [read_reply(stream) for _ in range(count)]
    raise ConnectionError(f"not a Redis server: it replied {line[:40]!r}")


def _bulk(stream: BinaryIO, size: int) -> bytes | None:
    if size < 0:
        return None
    body = stream.read(size + 2)
    if len(body) != size + 2:
        raise ConnectionError("Redis closed the connection")
    return body[:-2]


def quoted(value: bytes) -> str:
    """A string as redis-cli prints it: quoted, with escapes for non-printable bytes."""
    shown = (_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}") for byte in value)
    return '"' + "".join(shown) + '"'


def shown(reply: Reply, indent: str = "") -> str:
    """A reply as redis-cli prints it on a terminal, without the final newline."""
    match reply:
        case None:
            return "(nil)"
        case Status(text):
            return visible(text)
        case Failure(text):
            return f"(error) {visible(text)}"
        case int():
            return f"(integer) {reply}"
        case bytes():
            return quoted(reply)
        case []:
            return "(empty array)"
    width = len(str(len(reply)))
    inner = indent + " " * (width + 2)
    lines = [f"{number:>{width}}) {shown(item, inner)}" for number, item in enumerate(reply, 1)]
    return f"\n{indent}".join(lines)


def raw(reply: Reply) -> bytes:
    """A reply as redis-cli prints it to a pipe: raw bytes, one line per element."""
    match reply:
        case None:
            return b""
        case Status(text) | Failure(text):
            return text.encode()
        case int():
            return str(reply).encode()
        case bytes():
            return reply
    return b"\n".join(raw(item) for item in reply)
