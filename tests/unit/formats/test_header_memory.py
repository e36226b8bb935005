"""What the costliest headers take is bounded by a constant, whatever their size."""

from __future__ import annotations

import tracemalloc

import pytest
from support.formats.header_cases import HEADER_READERS, MemoryFile
from support.formats.large_headers import LARGE_HEADERS

from potluck.errors import ModelFileError

MOST_BYTES = 96 * 2**20
"""Beyond the size of the file, where the header is as large as it may be."""

SHARE = 1 / 32
"""Of that. Nothing grows faster than the header; ``benchmarks/fuzz_headers.py`` reads all of it."""

WINDOWS_BYTES = 2 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_HEADERS)
def test_peak(name: str) -> None:
    kind, make = LARGE_HEADERS[name]
    file = MemoryFile(make(SHARE))
    tracemalloc.start()
    try:
        if name in ("one value", "one name"):
            with pytest.raises(ModelFileError, match="not valid JSON"):
                HEADER_READERS[kind](file)
        else:
            assert HEADER_READERS[kind](file) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < SHARE * MOST_BYTES + file.size + WINDOWS_BYTES
