"""A product by a packed Q4_0 matrix written in C with vectors of 16, for CPUs: a bound for others.

What tinygrad's own code for a CPU is measured against. The panels are those of
``engines/tinygrad/layout``; columns are of whole blocks. Not used by the engine: it would be a
second kernel of every format, for devices that serve only where somebody insists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from potluck.engines.tinygrad.adapter import Device, dtypes

_OPENCL = """
#define INT16 int16
#define FLOAT16 float16
#define TO_FLOAT16(x) convert_float16(x)
#define SIGNED(x) as_int16(x)
#define LOAD_WORDS(at) vload16(0, at)
#define SCALE(at) f16_scales(at)
#define STORE(x, at) vstore16(x, 0, at)
#define ALL __global
float16 f16_scales(const __global ushort *at) { return vload_half16(0, (const __global half *)at); }
__kernel void q4_0(__global float *out, const __global uint *words,
                   const __global ushort *halves, const __global float *x)
{ int panel = get_global_id(0); BODY }
"""

_CLANG = """
typedef unsigned uint16 __attribute__((ext_vector_type(16), aligned(4)));
typedef int int16 __attribute__((ext_vector_type(16)));
typedef float float16 __attribute__((ext_vector_type(16), aligned(4)));
typedef _Float16 half16 __attribute__((ext_vector_type(16), aligned(2)));
typedef unsigned uint; typedef unsigned short ushort;
#define INT16 int16
#define FLOAT16 float16
#define TO_FLOAT16(x) __builtin_convertvector(x, float16)
#define SIGNED(x) ((int16)(x))
#define LOAD_WORDS(at) (*(const uint16 *)(at))
#define SCALE(at) __builtin_convertvector(*(const half16 *)(at), float16)
#define STORE(x, at) *(float16 *)(at) = (x)
#define ALL
void q4_0(float *restrict out, const uint *restrict words,
          const ushort *restrict halves, const float *restrict x)
{ for (int panel = 0; panel < PANELS; panel++) { BODY } }
"""

_BODY = """
FLOAT16 total = 0;
for (int block = 0; block < BLOCKS; block++) {
  FLOAT16 sums[4] = {0, 0, 0, 0};
  for (int j = 0; j < 4; j++) {
    const uint16 w = LOAD_WORDS(words + ((long)panel * BLOCKS * 4 + block * 4 + j) * 16);
    const ALL float *low = x + block * 32 + j * 4, *high = low + 16;
    sums[0] += TO_FLOAT16(SIGNED((w & 15)) - 8) * low[0];
    sums[1] += TO_FLOAT16(SIGNED(((w >> 8) & 15)) - 8) * low[1];
    sums[2] += TO_FLOAT16(SIGNED(((w >> 16) & 15)) - 8) * low[2];
    sums[3] += TO_FLOAT16(SIGNED(((w >> 24) & 15)) - 8) * low[3];
    sums[0] += TO_FLOAT16(SIGNED(((w >> 4) & 15)) - 8) * high[0];
    sums[1] += TO_FLOAT16(SIGNED(((w >> 12) & 15)) - 8) * high[1];
    sums[2] += TO_FLOAT16(SIGNED(((w >> 20) & 15)) - 8) * high[2];
    sums[3] += TO_FLOAT16(SIGNED(w >> 28) - 8) * high[3];
  }
  total += (sums[0] + sums[1] + sums[2] + sums[3])
           * SCALE(halves + ((long)panel * BLOCKS + block) * 16);
}
STORE(total, out + panel * 16);
"""


def q4_0_product(device: str, num_panels: int, num_blocks: int) -> Callable[..., None]:
    """Return a function of the buffers out, words, halves and x that runs the kernel to its end."""
    from tinygrad.device import TinyELF

    opened = Device[device]
    source = (_OPENCL if device == "CL" else _CLANG).replace("BODY", _BODY)
    source = source.replace("PANELS", str(num_panels)).replace("BLOCKS", str(num_blocks))
    kinds = (dtypes.float32, dtypes.uint32, dtypes.uint16, dtypes.float32)
    program = opened.runtime(
        TinyELF(
            lib=opened.compiler.compile(source) if device == "CPU" else source.encode(),
            name="q4_0",
            target=opened.renderer.target,
            signature=tuple((None, slot, dtype, (1,)) for slot, dtype in enumerate(kinds)),
        )
    )
    size = (num_panels, 1, 1) if device == "CL" else (1, 1, 1)

    def run(*tensors: Any) -> None:
        buffers = [tensor.uop.base.realized.ensure_allocated()._buf for tensor in tensors]
        program(*buffers, global_size=size, local_size=(1, 1, 1))
        opened.synchronize()

    return run
