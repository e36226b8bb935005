"""Bodies that clients compress."""

from __future__ import annotations

import gzip
import zlib

import pytest

from potluck.api.compressed import decompressor_for
from potluck.api.errors import ApiError

TEXT = bytes(range(256)) * 5000


def expanded(encoding: str, data: bytes, size: int = 10**9) -> bytes:
    decompressor = decompressor_for({"content-encoding": encoding})
    assert decompressor is not None
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    pieces = [piece for part in parts for piece in decompressor.pieces(part)]
    assert max(map(len, pieces), default=0) <= 256 * 1024
    decompressor.end()
    return b"".join(pieces)


@pytest.mark.parametrize("size", [10**9, 1000, 1])
def test_what_was_compressed_is_read(size: int) -> None:
    assert expanded("gzip", gzip.compress(TEXT), size) == TEXT
    assert expanded("x-gzip", gzip.compress(TEXT), size) == TEXT
    assert expanded("Deflate", zlib.compress(TEXT), size) == TEXT


def test_bodies_that_are_not_compressed_are_left_alone() -> None:
    assert decompressor_for({}) is None
    assert decompressor_for({"content-encoding": "identity"}) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", gzip.compress(TEXT)[:-1], gzip.compress(b"{}") + b"x"], ids=len
)
def test_broken_data_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        expanded("gzip", data)
    assert (raised.value.status, raised.value.code) == (400, "invalid_body")


def test_what_follows_the_data_is_refused_as_it_arrives() -> None:
    decompressor = decompressor_for({"content-encoding": "gzip"})
    assert decompressor is not None
    assert b"".join(decompressor.pieces(gzip.compress(b"{}"))) == b"{}"
    with pytest.raises(ApiError):
        next(decompressor.pieces(b"x"))


def test_other_compressions_are_refused_by_name() -> None:
    with pytest.raises(ApiError, match="'br' is not supported: send gzip") as raised:
        decompressor_for({"content-encoding": "br"})
    assert raised.value.status == 415
