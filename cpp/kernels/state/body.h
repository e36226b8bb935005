// Ops that keep a state of a whole sequence: short convolutions, the gated delta rule, the scan of
// Mamba-2. Included once per instruction set, after its lanes.
//
// Tokens are processed one after another, so that results do not depend, in any bit, on how a
// sequence is divided into steps. Lanes are columns of outputs, which are independent of one
// another.
#pragma once

#include "kernels/state/conv.h"
#include "kernels/state/delta.h"
#include "kernels/state/scan.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(POTLUCK_ISA)

namespace potluck {
namespace POTLUCK_ISA {

void causal_conv(const ConvArgs& args) {
  for (int64_t i = args.first_column; i < args.end_column; i += kConvColumns)
    convolve(args, i, args.end_column - i < kConvColumns ? args.end_column - i : kConvColumns);
}

void delta_inputs(const DeltaInputArgs& args) {
  for (int64_t h = 0; h < args.num_key_heads; ++h) make_delta_keys(args, h);
  make_delta_factors(args);
}

void gated_delta(const DeltaArgs& args) {
  const int64_t num_strips = num_state_strips(args.value_dim);
  for_strips(num_strips, args.first_strip, args.end_strip, [&](auto n, int64_t head, int64_t strip) {
    DeltaTile<decltype(n)::value>(args, head, strip).run();
  });
}

void scan_inputs(const ScanInputArgs& args) { make_scan_factors(args); }

void state_scan(const ScanArgs& args) {
  const int64_t num_strips = num_state_strips(args.head_dim);
  for_strips(num_strips, args.first_strip, args.end_strip, [&](auto n, int64_t head, int64_t strip) {
    ScanTile<decltype(n)::value>(args, head, strip).run();
  });
}

}  // namespace POTLUCK_ISA
}  // namespace potluck
