// Quantized weights as bf16, for prefill that need not be bit-identical to decode: every weight is
// computed as in `embed`, rounded to bf16, and multiplied with activations that were rounded to
// bf16. No product is scaled afterwards, which takes most of the time of the exact kernels.
#include "simd/lanes_avx512.h"

#include "kernels/linear/amx_bf16.h"
#include "kernels/linear/amx_group.h"
#include "kernels/variants.h"

namespace potluck {
namespace amx {
namespace {

using namespace avx512;

// Generates tiles of the groups of a panel, one step each. A group takes about 100 cycles, and is
// used by up to 16 products of 16 cycles.
template <class Weights>
class ExpandedTiles {
 public:
  static constexpr int64_t kMaxSteps = 16;  // 32 KB for two panels: the L1 cache has 48

  explicit ExpandedTiles(const Matrix& weight) : weight_(weight) {}

  const uint8_t* tiles(int place, int64_t panel, int64_t first_step, int64_t num_columns) {
    const uint8_t* data = weight_.data + panel * panel_bytes(weight_.format, weight_.columns);
    for (int64_t s = 0; s < num_columns / kStepColumns; ++s)
      expand(load_group<Weights>(data, first_step + s), expanded_[place] + s * kStepTileBytes);
    return expanded_[place];
  }

 private:
  static POTLUCK_LANES void expand(const Group& group, uint8_t* tile) {
    for (int q = 0; q < layout::kQuadsPerGroup; ++q) {
      F32x16 scale = group.scales.scale;
      if constexpr (Weights::kHasHalfScales)
        scale = mul(scale, to_f32(group.scales.half_scale[q / (layout::kQuadsPerGroup / 2)]));
      // scale * v, scale * kZero and their difference are exact, and an fma rounds once.
      F32x16 offset = mul(scale, splat((float)-Weights::kZero));
      if constexpr (Weights::kHasHalfMinimums)
        offset = mul(group.scales.minimum,
                     to_f32(group.scales.half_minimum[q / (layout::kQuadsPerGroup / 2)]));
      else if constexpr (Weights::kHasMinimum)
        offset = group.scales.minimum;
      for (int pair = 0; pair < 2; ++pair) {
        const F32x16 even =
            fma(to_f32(byte_of_lane(group.quad[q], 2 * pair)), scale, offset);
        const F32x16 odd =
            fma(to_f32(byte_of_lane(group.quad[q], 2 * pair + 1)), scale, offset);
        store_pairs(tile + (2 * q + pair) * layout::kLineBytes, even, odd);
      }
    }
  }

  // A pair line: lane r's even number followed by its odd one, rounded to nearest even.
  static POTLUCK_LANES void store_pairs(uint8_t* line, F32x16 even, F32x16 odd) {
    const __m512i kInterleave = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v);
    _mm512_store_si512(line, _mm512_permutexvar_epi16(kInterleave, both));
  }

  const Matrix& weight_;
  alignas(64) uint8_t expanded_[kPanelBlock][kMaxSteps * kStepTileBytes];
};

}  // namespace

#define POTLUCK_DEFINE(format, suffix)                                                         \
  void linear_fast_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    ExpandedTiles<avx512::format> source(args.weight);                                         \
    multiply_bf16(args, source, first_panel, end_panel);                                       \
  }
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE)
#undef POTLUCK_DEFINE

}  // namespace amx
}  // namespace potluck
