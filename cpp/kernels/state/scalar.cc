// Any CPU, and the specification of the bits.
#include "simd/lanes_scalar.h"

#include "kernels/state/body.h"
