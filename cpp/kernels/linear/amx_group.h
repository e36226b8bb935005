// All quads of a group at once. Included after the lanes of AVX-512.
#pragma once

#include "kernels/linear/decode.h"

namespace potluck {
namespace amx {
namespace {

struct Group {
  avx512::U8x64 quad[layout::kQuadsPerGroup];
  avx512::GroupScales scales;
};

// Group `index` of the panel at `panel`.
template <class Weights>
POTLUCK_LANES Group load_group(const uint8_t* panel, int64_t index) {
  using Layout = typename Weights::Layout;
  const uint8_t* block = panel + index / Weights::kGroupsPerBlock * Layout::kBlockBytes;
  const int64_t g = index % Weights::kGroupsPerBlock;
  const uint8_t* packed = block + Layout::kGroups + g * Layout::kGroupBytes;
  const avx512::QuadPair pairs[] = {
      Weights::template load_quads<0>(packed), Weights::template load_quads<1>(packed),
      Weights::template load_quads<2>(packed), Weights::template load_quads<3>(packed)};
  Group group;
  for (int i = 0; i < 4; ++i) {
    group.quad[i] = pairs[i].first;
    group.quad[i + 4] = pairs[i].second;
  }
  Weights::load_scales(block, g, group.scales);
  return group;
}

}  // namespace
}  // namespace amx
}  // namespace potluck
