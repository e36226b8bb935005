// AVX2, FMA, F16C: Intel Haswell (2013), AMD Zen (2017) and later.
#include "simd/lanes_avx2.h"

#include "kernels/state/body.h"
