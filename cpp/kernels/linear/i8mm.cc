// Matrix products of bytes and of bf16 (FEAT_I8MM and FEAT_BF16, both mandatory in Armv8.6): Arm
// Neoverse V1 (2020) and N2, Cortex-A510, A710, X2 and later.
#include "simd/lanes_neon.h"

#include "kernels/linear/bfdot_pairs.h"
#include "kernels/linear/dotprod_products.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_QUANTIZED_LINEAR(i8mm)

namespace potluck {
namespace i8mm {

#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    neon::quantized<neon::DotProducts, neon::format>(args, first_panel, end_panel);       \
  }
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace i8mm
}  // namespace potluck
