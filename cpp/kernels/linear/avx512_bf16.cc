// AVX-512 BF16: Intel Cooper Lake (2020), AMD Zen 4 (2022) and later.
#include "simd/lanes_avx512.h"

#include "kernels/linear/bf16_pairs.h"
