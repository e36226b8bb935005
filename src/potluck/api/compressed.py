"""Request bodies that clients compress."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from potluck.api.errors import ApiError, invalid

_ANY_HEADER = 32 + zlib.MAX_WBITS
"""For ``zlib.decompressobj``: the header of gzip or zlib, as ``deflate`` means in HTTP."""

_PIECE_BYTES = 256 * 1024
"""A millisecond's work: a small body may expand to a thousand times its size."""


class Decompressor:
    """Decompresses one body as it arrives, in small pieces."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_ANY_HEADER)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what ``data`` expands to. Raises ``ApiError`` (400) for data in another format."""
        while True:
            try:
                piece = self._decoder.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise _malformed() from error
            if self._decoder.unused_data:  # it would be kept, and grow
                raise _malformed()
            data = self._decoder.unconsumed_tail
            if piece:
                yield piece
            if not data and len(piece) < _PIECE_BYTES:
                return

    def end(self) -> None:
        """Raise ``ApiError`` (400) if the body was not complete."""
        if not self._decoder.eof:
            raise _malformed()


def decompressor_for(headers: Mapping[str, str]) -> Decompressor | None:
    """Return a new one for a compressed body, and None for one that is not compressed.

    Raises ``ApiError`` (415) for a compression that is not supported.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Decompressor()
    raise ApiError(
        415,
        f"the Content-Encoding {encoding[:64]!r} is not supported: send gzip, deflate or no "
        "compression",
        code="unsupported_content_encoding",
        headers={"Accept-Encoding": "gzip, deflate"},
    )


def _malformed() -> ApiError:
    return invalid(None, "the body is not compressed as Content-Encoding says", code="invalid_body")
