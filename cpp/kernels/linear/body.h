// out = weight x + bias over panels. Included once per instruction set, after its lanes.
//
// Lanes are output rows, so that every output element is one chain of fma over its groups (or
// columns) in ascending order, whatever the tile: the tile only determines how often a loaded and
// unpacked quad is used.
#pragma once

#include "kernels/linear/float_tiles.h"
#include "kernels/linear/quantized_tiles.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {

#define POTLUCK_DEFINE_FLOAT(format, suffix)                                              \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    using Float = FloatTiles<format>;                                                     \
    run_float_tiles<Float::Tile, Float::kMostTokens>(args, first_panel, end_panel);       \
  }
#define POTLUCK_DEFINE_QUANTIZED(format, suffix)                                          \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel) { \
    quantized<format>(args, first_panel, end_panel);                                      \
  }
POTLUCK_FLOAT_FORMATS(POTLUCK_DEFINE_FLOAT)
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DEFINE_QUANTIZED)
#undef POTLUCK_DEFINE_FLOAT
#undef POTLUCK_DEFINE_QUANTIZED

}  // namespace POTLUCK_ISA
}  // namespace potluck
