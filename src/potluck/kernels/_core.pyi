"""The compiled core (cpp/bind). Arrays are taken as they are: C-contiguous, of the dtype named.

Wrong shapes raise ``ValueError``, wrong dtypes and layouts ``TypeError``. Calls release the GIL
while they compute.
"""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]

def available_isas() -> list[str]:
    """Names of the instruction sets whose kernels can run here, slowest first."""

def selected_isa() -> str:
    """What POTLUCK_ISA asks for, else the fastest. ``ValueError`` if that is not available."""

def kernels_for(isa: str) -> Kernels:
    """The kernels of one instruction set. ``ValueError`` if they cannot run here."""

def format_info(format: str) -> tuple[int, int]:
    """``(columns, bytes)`` of one block of a storage format, by its label."""

def panel_bytes(format: str, columns: int) -> int:
    """Bytes of a panel: 16 rows of ``columns`` columns."""

def pack_rows(
    format: str, columns: int, rows: U8, start_row: int, num_rows: int, panels: U8
) -> None:
    """Write stored rows into panels (see cpp/kernels/kernels.h)."""

class Kernels:
    """One instruction set's kernels; cpp/kernels/kernels.h says what each promises."""

    @property
    def isa(self) -> str:
        """The name of the instruction set."""

    def quantize(self, x: F32, q: I8, scales: F32, sums: I32) -> None:
        """``x, q [tokens, columns]``; ``scales, sums [tokens, columns / 32]``."""

    def linear_float(
        self,
        format: str,
        panels: U8,
        x: F32,
        bias: F32 | None,
        out: F32,
        first_panel: int,
        end_panel: int,
    ) -> None:
        """``x [tokens, columns]``, ``out [tokens, rows]``; rows of ``out`` may lie apart."""

    def linear_quantized(
        self,
        format: str,
        panels: U8,
        q: I8,
        scales: F32,
        sums: I32,
        bias: F32 | None,
        out: F32,
        first_panel: int,
        end_panel: int,
    ) -> None:
        """As ``linear_float`` for what ``quantize`` made."""

    def embed(self, format: str, panels: U8, rows: int, row: int, out: F32) -> None:
        """``out [columns]`` is row ``row`` of ``rows``."""

    def rms_norm(self, x: F32, weight: F32, out: F32, epsilon: float) -> None:
        """``x, out [tokens, columns]``; groups are as long as ``weight``."""

    def rope(self, x: F32, cos: F32, sin: F32) -> None:
        """``x [heads, head_dim]`` of one token, in place."""

    def silu_gate(self, gate: F32, up: F32, out: F32) -> None:
        """Vectors of one length."""

    def add(self, x: F32, y: F32) -> None:
        """``x += y``, vectors of one length."""

    def append_kv(self, k: F32, v: F32, keys: U16, values: U16, block: int, offset: int) -> None:
        """``k, v [kv_heads, head_dim]``; the cache as bits of float16."""

    def attention(
        self,
        q: F32,
        keys: U16,
        values: U16,
        block_table: I32,
        first_position: int,
        position: int,
        scale: float,
        out: F32,
    ) -> None:
        """``q, out [heads, head_dim]`` of one token, over all key-value heads."""

    def exp_sum(self, x: F32, max: float, out: F32) -> float:
        """``out = exp(x - max)``; returns its sum."""
