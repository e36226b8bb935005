// Dot products of unsigned by signed bytes, and of bf16 (FEAT_I8MM and FEAT_BF16, both mandatory in
// Armv8.6): Arm Neoverse V1 (2020) and N2, Cortex-A510, A710, X2 and later. Why not the matrix
// products of FEAT_I8MM: docs/adr/0022.
#include "simd/lanes_neon.h"

#include "kernels/linear/bfdot_pairs.h"
#include "kernels/linear/dotprod_products.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_QUANTIZED_LINEAR(dotprod)

namespace potluck {
namespace i8mm {

void linear_q8_0(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

namespace {

// Unsigned by signed bytes: 8-bit values are used as stored. Smaller ones are also valid as signed
// bytes.
struct Usdot {
  static constexpr int kOffset = 0;

  template <class Weights, int first_row>
  static POTLUCK_LANES neon::U8x32 rows(const uint8_t* block, int64_t g, int quad) {
    return neon::rows_of_quad<Weights, first_row>(block, g, quad);
  }
  template <int lane>
  static POTLUCK_LANES int32x4_t dot(int32x4_t sum, uint8x16_t w, int8x16_t a) {
    return vusdotq_laneq_s32(sum, w, a, lane);
  }
};

}  // namespace

// Unsigned bytes require a correction per token, which from three tokens on costs more than
// flipping the signs of the weights.
void linear_q8_0(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  if (args.num_tokens > 2) return dotprod::linear_q8_0(args, first_panel, end_panel);
  for (int64_t panel = first_panel; panel < end_panel; ++panel)
    neon::quantized_tokens<neon::DotProducts<Usdot>, neon::Q8_0, 2>(args, panel, 0);
}

}  // namespace i8mm
}  // namespace potluck
