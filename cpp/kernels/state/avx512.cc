// AVX-512 F, BW, DQ, VL, VNNI: Intel Cascade Lake (2019), AMD Zen 4 (2022) and later.
#include "simd/lanes_avx512.h"

#include "kernels/state/body.h"
