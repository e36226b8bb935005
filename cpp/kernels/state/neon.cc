// Advanced SIMD of Armv8.0: every aarch64 CPU.
#include "simd/lanes_neon.h"

#include "kernels/state/body.h"
