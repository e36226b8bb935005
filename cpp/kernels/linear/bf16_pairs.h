// out = weight x + bias for BF16 weights and activations, by `vdpbf16ps`. Included after the lanes
// of AVX-512.
//
// An instruction adds the odd column's product and then the even one's, each rounded once, and
// treats subnormals as zero (Intel SDM, VDPBF16PS).
#pragma once

#include "kernels/linear/pair_tiles.h"

namespace potluck {
namespace avx512_bf16 {

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

namespace {

using namespace avx512;

struct Pairs {
  static POTLUCK_LANES __m512i load_line(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static POTLUCK_LANES __m512i load_halves(const uint8_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  }
  static POTLUCK_LANES __m512i splat(uint32_t two) { return _mm512_set1_epi32((int32_t)two); }
  static POTLUCK_LANES F32x16 dot(F32x16 acc, __m512i w, __m512i x) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)w, (__m512bh)x)};
  }
};

}  // namespace

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  run_float_tiles<PairTiles<Pairs>::Tile, kPairTokenTile>(args, first_panel, end_panel);
}

}  // namespace avx512_bf16
}  // namespace potluck
