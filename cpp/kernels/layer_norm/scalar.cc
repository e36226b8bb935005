// Any CPU, and the specification of the results, bit for bit.
#include "simd/lanes_scalar.h"

#include "kernels/layer_norm/body.h"
