// Advanced SIMD of Armv8.0: Arm Cortex-A53 (2012), A72 (2015) and every later aarch64 CPU.
#include "simd/lanes_neon.h"

#include "kernels/linear/float_tiles.h"
#include "kernels/linear/neon_products.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(neon)

namespace potluck {
namespace neon {

#define POTLUCK_DEFINE_FLOAT(format, suffix)                                              \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    using Float = FloatTiles<format>;                                                     \
    run_float_tiles<Float::Tile, Float::kMostTokens>(args, first_panel, end_panel);       \
  }
#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    quantized<WideningProducts, format>(args, first_panel, end_panel);                    \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_FLOAT)
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_FLOAT
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace neon
}  // namespace potluck
