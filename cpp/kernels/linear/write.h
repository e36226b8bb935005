// Writes the results of a linear kernel. Included by bodies, after the lanes of an instruction set.
#pragma once

#include "kernels/kernels.h"

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Adds the bias to one token's sums over the rows of a panel and stores those that exist.
POTLUCK_LANES void write(const LinearArgs& args, int64_t panel, int64_t token, F32x16 value) {
  const int64_t row = panel * kPanelRows;
  const int64_t rest = args.weight.rows - row;
  const int64_t count = rest < kPanelRows ? rest : kPanelRows;
  if (args.bias) value = add(value, load_partial(args.bias + row, count));
  store_partial(args.out + token * args.out_stride + row, value, count);
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
