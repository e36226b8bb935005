// Dot products of bytes (FEAT_DotProd): Arm Cortex-A55, A75 (2017), A76 and later.
#include "simd/lanes_neon.h"

#include "kernels/linear/dotprod_products.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_QUANTIZED_LINEAR(dotprod)

namespace potluck {
namespace dotprod {

#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    neon::quantized<neon::DotProducts, neon::format>(args, first_panel, end_panel);       \
  }
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace dotprod
}  // namespace potluck
