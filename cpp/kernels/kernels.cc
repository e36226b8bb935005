// Sizes of formats, panels and scratch memory.
#include "kernels/kernels.h"

#include "kernels/linear/layout.h"

namespace potluck {
namespace {

// The file's block layouts are those of ggml (ggml-common.h).
constexpr FormatInfo kFormats[kNumFormats] = {
    {"f32", 1, 4},     {"f16", 1, 2},       {"bf16", 1, 2},      {"q8_0", 32, 34},
    {"q4_0", 32, 18},  {"q4_1", 32, 20},    {"q5_0", 32, 22},    {"q5_1", 32, 24},
    {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
    {"q2_k", 256, 84}, {"q3_k", 256, 110},  {"iq4_nl", 32, 18},  {"iq4_xs", 256, 136},
    {"mxfp4", 32, 17},
};

template <class L>
constexpr bool takes(Format format) {
  return L::kBlockBytes == kPanelRows * kFormats[static_cast<int>(format)].block_bytes;
}
static_assert(takes<layout::Q8_0>(Format::Q8_0) && takes<layout::Q4_0>(Format::Q4_0) &&
              takes<layout::Q4_1>(Format::Q4_1) && takes<layout::Q5_0>(Format::Q5_0) &&
              takes<layout::Q5_1>(Format::Q5_1) && takes<layout::Q4_K>(Format::Q4_K) &&
              takes<layout::Q5_K>(Format::Q5_K) && takes<layout::Q6_K>(Format::Q6_K) &&
              takes<layout::Q2_K>(Format::Q2_K) && takes<layout::Q3_K>(Format::Q3_K) &&
              takes<layout::IQ4_NL>(Format::IQ4_NL) && takes<layout::IQ4_XS>(Format::IQ4_XS) &&
              takes<layout::MXFP4>(Format::MXFP4));

}  // namespace

FormatInfo format_info(Format format) { return kFormats[static_cast<int>(format)]; }

int64_t panel_bytes(Format format, int64_t columns) {
  const FormatInfo info = format_info(format);
  return kPanelRows * (columns / info.block_columns) * info.block_bytes;
}

// For each row, its weighted values, its maximum and its sum.
int64_t attention_partial_floats(int64_t num_rows, int64_t value_dim) {
  return num_rows * (padded_value_dim(value_dim) + 2);
}

// For each row, its query, its scores in a span, and two partials: that of the span and that of the
// preceding spans. Values that are columns of the keys are transposed in a separate area.
int64_t attention_scratch_floats(int64_t num_rows, int64_t head_dim, int64_t value_dim,
                                 bool has_values) {
  return num_rows * (head_dim + kScoreStride) + (has_values ? 0 : kTransposedFloats) +
         2 * attention_partial_floats(num_rows, value_dim);
}

}  // namespace potluck
