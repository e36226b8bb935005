// Dot products of bytes (FEAT_DotProd): Arm Cortex-A55 and A75 (2017), A76 and later.
#include "simd/lanes_neon.h"

#include "kernels/linear/dotprod_products.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_QUANTIZED_LINEAR(dotprod)

namespace potluck {
namespace dotprod {
namespace {

// Signed by signed bytes.
struct Sdot {
  static constexpr int kOffset = 128;

  template <class Weights, int first_row>
  static POTLUCK_LANES neon::I8x32 rows(const uint8_t* block, int64_t g, int quad) {
    return neon::signed_rows_of_quad<Weights, first_row>(block, g, quad);
  }
  template <int lane>
  static POTLUCK_LANES int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t a) {
    return vdotq_laneq_s32(sum, w, a, lane);
  }
};

}  // namespace

#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    neon::quantized<neon::DotProducts<Sdot>, neon::format>(args, first_panel, end_panel); \
  }
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace dotprod
}  // namespace potluck
