"""Panels are kept in files: whoever changes their bytes raises ``kPanelLayout``.

The hash below is of our own output on purpose. It says nothing about what is right (other tests
do), only that files which earlier builds have packed are still what this one would pack.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from potluck.kernels import PANEL_LAYOUT, convert_rows, pack_rows, panel_bytes
from potluck.types.choices import Quantization
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

NUM_ROWS, NUM_COLUMNS = 19, 512

KNOWN = (2, "a5a0fa54e3b2f387a0a92c21e7c788ec077de1a844995c89f9932607497a6525")
KNOWN_LATER = (2, "7538320668298eec03b34f1859f1c720c6e8801812ccf32bdadfa9ccb471b347")
"""Of the formats that came later, and of their quantizers."""

FIRST = tuple(each for each in COMPUTED_FORMATS[: COMPUTED_FORMATS.index(TensorFormat.Q6_K) + 1])
LATER = tuple(each for each in COMPUTED_FORMATS if each not in FIRST)


@pytest.mark.parametrize(("formats", "known"), [(FIRST, KNOWN), (LATER, KNOWN_LATER)])
def test_the_bytes_of_panels_have_not_changed(
    formats: tuple[TensorFormat, ...], known: tuple[int, str]
) -> None:
    """Panels of every format, and of what every quantizer makes of the same numbers."""
    digest = hashlib.sha256()
    # No library's random numbers: they may change.
    pattern = (np.arange(NUM_ROWS * NUM_COLUMNS * 4, dtype=np.uint64) * 2654435761 >> 11) % 256

    def pack(format: TensorFormat, stored: NDArray[np.uint8]) -> None:
        panels = np.zeros(2 * panel_bytes(format.label, NUM_COLUMNS), dtype=np.uint8)
        pack_rows(format.label, NUM_COLUMNS, stored, 0, NUM_ROWS, panels)
        digest.update(panels.tobytes())

    for format in formats:
        size = NUM_ROWS * format.row_bytes(NUM_COLUMNS)
        pack(format, pattern[:size].astype(np.uint8))
    numbers = (pattern[: NUM_ROWS * NUM_COLUMNS].astype(np.float32) - 127.5) / 64
    for quantization in Quantization:
        if quantization is Quantization.NONE:
            continue
        format = TensorFormat[quantization.name]
        if format not in formats:
            continue
        stored = np.empty(NUM_ROWS * format.row_bytes(NUM_COLUMNS), dtype=np.uint8)
        rows = numbers.view(np.uint8)
        convert_rows(rows, "f32", format.label, NUM_ROWS, NUM_COLUMNS, stored, None)
        pack(format, stored)
    assert (PANEL_LAYOUT, digest.hexdigest()) == known
