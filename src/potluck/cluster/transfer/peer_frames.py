"""The protocol by which two nodes exchange chunks, over mutual TLS.

Both begin with a magic number and the wire version. Then the fetching node sends ``WANT`` and the
other one answers each chunk, in any order, with ``CHUNK`` or ``LACK``, and sends ``WAIT`` at
intervals while it has nothing else to send. A node that connects in order to be asked, because the
fetching node cannot connect to it, sends ``OFFER`` before everything else. All integers are
little-endian::

    frame   kind (1 byte), bytes of the body (4)
    WANT    SHA-256 of the file (32), bytes of the file (8), first chunk (4), end (4)
    CHUNK   SHA-256 of the file (32), chunk (4), SHA-256 of the chunk (32), its bytes
    LACK    SHA-256 of the file (32), chunk (4), the reason (UTF-8)
    WAIT    nothing

This module only defines the layout and does no I/O.
"""

from __future__ import annotations

import enum
import struct

from potluck.types.cluster import WIRE_VERSION
from potluck.types.content import CHUNK_BYTES, FileContent

SERVER_NAME = "transfer.potluck"
"""In the ClientHello, so that these connections can share a port with others."""

HELLO = struct.pack("<4sH", b"PLKT", WIRE_VERSION)
OFFER = struct.pack("<4sH", b"PLKO", WIRE_VERSION)
"""As long as ``HELLO``, so that either can be read first."""

HEAD = struct.Struct("<BI")
_WANT = struct.Struct("<32sQII")
_CHUNK = struct.Struct("<32sI32s")
_LACK = struct.Struct("<32sI")

CHUNK_HEAD_BYTES = _CHUNK.size
MOST_BODY_BYTES = CHUNK_HEAD_BYTES + CHUNK_BYTES
MOST_REQUEST_BYTES = _WANT.size
_MOST_REASON_BYTES = 200

MOST_OUTSTANDING = 64
"""Chunks for which one connection may wait."""

WAIT_SECONDS = 2.0
SILENCE_SECONDS = 10.0
"""A peer that sends nothing for this long, not even ``WAIT``, has failed."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    WANT = 1
    CHUNK = 2
    LACK = 3
    WAIT = 4


def is_offer(begin: bytes | bytearray) -> bool:
    """Return whether a connection that begins like this was opened to be asked for chunks."""
    return begin[:4] == OFFER[:4]


def check_hello(hello: bytes | bytearray) -> None:
    """Raise ``ValueError``, with the reason, unless the peer uses the same protocol and version."""
    magic, version = struct.unpack("<4sH", hello)
    if magic != HELLO[:4]:
        raise ValueError("it does not use Potluck's protocol for files")
    if version != WIRE_VERSION:
        raise ValueError(f"it uses wire version {version}, but this node uses {WIRE_VERSION}")


def encode_want(content: FileContent, first: int, end: int) -> bytes:
    """Return a frame that requests the chunks ``[first, end)``."""
    digest = bytes.fromhex(content.sha256)
    return HEAD.pack(Kind.WANT, _WANT.size) + _WANT.pack(digest, content.num_bytes, first, end)


def decode_want(body: bytes | bytearray) -> tuple[FileContent, int, int]:
    """Return content, first chunk and end. Raise ``ValueError`` for a malformed frame."""
    if len(body) != _WANT.size:
        raise ValueError("it sent a malformed request")
    digest, num_bytes, first, end = _WANT.unpack(body)
    content = FileContent(digest.hex(), num_bytes)
    if not 0 <= first < end <= content.num_chunks or end - first > MOST_OUTSTANDING:
        raise ValueError(f"it requested chunks {first} to {end} of {content.num_chunks}")
    return content, first, end


def encode_chunk(sha256: str, chunk: int, digest: bytes, num_bytes: int) -> bytes:
    """Return what precedes the bytes of a chunk."""
    return HEAD.pack(Kind.CHUNK, _CHUNK.size + num_bytes) + _CHUNK.pack(
        bytes.fromhex(sha256), chunk, digest
    )


def decode_chunk(body: memoryview) -> tuple[str, int, bytes, memoryview]:
    """Return SHA-256, chunk, its digest and its bytes. Raise ``ValueError``."""
    if len(body) < _CHUNK.size:
        raise ValueError("it sent a malformed chunk")
    sha256, chunk, digest = _CHUNK.unpack_from(body)
    return sha256.hex(), chunk, digest, body[_CHUNK.size :]


def encode_lack(sha256: str, chunk: int, reason: str) -> bytes:
    """Return a frame which says that a chunk will not be sent."""
    text = reason.encode("utf-8", "replace")[:_MOST_REASON_BYTES]
    head = HEAD.pack(Kind.LACK, _LACK.size + len(text))
    return head + _LACK.pack(bytes.fromhex(sha256), chunk) + text


def decode_lack(body: memoryview) -> tuple[str, int, str]:
    """Return SHA-256, chunk and reason. Raise ``ValueError``."""
    if not _LACK.size <= len(body) <= _LACK.size + _MOST_REASON_BYTES:
        raise ValueError("it sent a malformed answer")
    sha256, chunk = _LACK.unpack_from(body)
    return sha256.hex(), chunk, bytes(body[_LACK.size :]).decode("utf-8", "replace")


def encode_wait() -> bytes:
    """Return a frame which says that this side is alive."""
    return HEAD.pack(Kind.WAIT, 0)
