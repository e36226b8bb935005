#include "program/head_linear.h"

#include <algorithm>
#include <variant>

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;

// Tokens that are multiplied at once: the weights of a head, about 100 KB, are read once for all of
// them, and their columns stay in the L2 cache (128 KiB at 512 columns).
constexpr int64_t kMostTokens = 64;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The panels that contain a head's rows, which may start and end within a panel.
int64_t most_panels(const op::HeadLinear<int>& o) {
  return o.rows % kPanelRows == 0 ? num_panels(o.rows) : num_panels(o.rows - 1) + 1;
}

uint64_t aligned(int64_t num_floats) {
  const uint64_t bytes = static_cast<uint64_t>(num_floats) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The maximum over all HeadLinear ops: the columns of one head, and its rows if they are not whole
// panels, for the tokens that are multiplied at once.
struct Sizes {
  uint64_t input_bytes = 0, output_bytes = 0;

  Sizes(const Program& program, int64_t max_tokens) {
    const int64_t tokens = std::min(max_tokens, kMostTokens);
    for (const op::Resolved& any : program.ops()) {
      const auto* o = std::get_if<op::HeadLinear<int>>(&any);
      if (o == nullptr) continue;
      input_bytes = std::max(input_bytes, aligned(tokens * o->columns));
      if (o->rows % kPanelRows == 0) continue;
      output_bytes = std::max(output_bytes, aligned(tokens * most_panels(*o) * kPanelRows));
    }
  }
};

}  // namespace

uint64_t HeadLinearRunner::scratch_bytes(const Program& program, int64_t max_tokens,
                                         int num_threads) {
  const Sizes sizes(program, max_tokens);
  return (sizes.input_bytes + sizes.output_bytes) * static_cast<uint64_t>(num_threads);
}

HeadLinearRunner::HeadLinearRunner(const Program& program, const Kernels& kernels,
                                   const WeightStore& weights, Arithmetic arithmetic,
                                   int64_t max_tokens, uint8_t* scratch)
    : program_(program),
      kernels_(kernels),
      weights_(weights),
      arithmetic_(arithmetic),
      scratch_(scratch) {
  const Sizes sizes(program, max_tokens);
  input_bytes_ = sizes.input_bytes;
  thread_bytes_ = sizes.input_bytes + sizes.output_bytes;
}

void HeadLinearRunner::find_tokens(const Matrix& stack, const Batch& batch) {
  const auto is_fast = [&](bool is_prefill) {
    return uses_fast(kernels_, arithmetic_, stack.format, is_prefill);
  };
  tokens_.clear();
  const auto add = [&](int64_t begin, int64_t end, bool is_prefill) {
    for (int64_t i = begin; i < end; i += kMostTokens)
      tokens_.push_back({i, std::min(i + kMostTokens, end), is_fast(is_prefill)});
  };
  if (is_fast(true) == is_fast(false)) return add(0, batch.num_tokens(), false);
  for (const RowRange& range : batch.ranges()) add(range.begin, range.end, range.is_prefill);
}

// For rows `stride` apart; those of one token are not copied if they are used as they are.
Activations HeadLinearRunner::gather(const Matrix& stack, bool is_fast, const float* x,
                                     int64_t stride, int64_t num_tokens, int worker) const {
  const int64_t columns = stack.columns, groups = columns / kGroupColumns;
  uint8_t* place = place_of(worker);
  Activations input{};
  if (is_fast) {
    auto* bf16 = reinterpret_cast<uint16_t*>(place);
    for (int64_t t = 0; t < num_tokens; ++t)
      kernels_.round_bf16(x + t * stride, columns, bf16 + t * columns);
    input.bf16 = bf16;
  } else if (is_quantized(stack.format)) {
    auto* q = reinterpret_cast<int8_t*>(place);
    auto* scales = reinterpret_cast<float*>(place + num_tokens * columns);
    auto* sums = reinterpret_cast<int32_t*>(scales + num_tokens * groups);
    for (int64_t t = 0; t < num_tokens; ++t)
      kernels_.quantize(x + t * stride, 1, columns, q + t * columns, scales + t * groups,
                        sums + t * groups);
    input.q = q;
    input.scales = scales;
    input.sums = sums;
  } else if (num_tokens == 1) {
    input.x = x;
  } else {
    auto* rows = reinterpret_cast<float*>(place);
    for (int64_t t = 0; t < num_tokens; ++t)
      std::copy_n(x + t * stride, columns, rows + t * columns);
    input.x = rows;
  }
  return input;
}

void HeadLinearRunner::run(const op::HeadLinear<int>& o, const Batch& batch, const float* x,
                           float* out, ThreadPool::Session& session) {
  const Matrix& stack = weights_.matrix(o.weight);
  const int64_t x_width = program_.width(o.x), out_width = program_.width(o.out);
  find_tokens(stack, batch);
  // A head's panels are divided if there are too few heads for all threads.
  const auto num_wholes = static_cast<int64_t>(tokens_.size()) * o.num_heads;
  int64_t num_pieces = 1;
  if (session.num_threads() > 1 && o.rows % kPanelRows == 0) {
    const int64_t most = std::max<int64_t>(1, num_panels(o.rows) / kernels_.least_panels);
    num_pieces = std::min(most, divide_up(session.num_threads() * kChunksPerThread, num_wholes));
  }
  const int64_t count = num_wholes * num_pieces;
  const int64_t work = o.rows * o.columns * batch.num_tokens() * o.num_heads / count;
  parallel_ranges(session, count, 1, work, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t whole = i / num_pieces, piece = i % num_pieces;
      const int64_t head = whole % o.num_heads;
      const Tokens& tokens = tokens_[static_cast<size_t>(whole / o.num_heads)];
      const float* columns = x + tokens.begin * x_width + o.x_start + head * o.x_stride;
      LinearArgs args{};
      args.num_tokens = tokens.end - tokens.begin;
      args.input = gather(stack, tokens.is_fast, columns, x_width, args.num_tokens, worker);
      args.out = out + tokens.begin * out_width + o.out_start + head * o.out_stride;
      args.out_stride = out_width;
      const auto& kernels = tokens.is_fast ? kernels_.linear_fast : kernels_.linear;
      const auto kernel = kernels[static_cast<int>(stack.format)];
      if (o.rows % kPanelRows != 0) {
        multiply_across(o, stack, head, kernel, args, worker);
        continue;
      }
      const int64_t panels = num_panels(o.rows);
      args.weight = {stack.format, o.rows, o.columns,
                     stack.data + head * panels * panel_bytes(stack.format, o.columns)};
      kernel(args, panels * piece / num_pieces, panels * (piece + 1) / num_pieces);
    }
  });
}

// Goes through memory for whole panels, which also have rows of other heads.
void HeadLinearRunner::multiply_across(const op::HeadLinear<int>& o, const Matrix& stack,
                                       int64_t head, LinearKernel kernel, LinearArgs args,
                                       int worker) const {
  const int64_t first_row = head * o.rows, first_panel = first_row / kPanelRows;
  const int64_t panels = num_panels(first_row + o.rows) - first_panel;
  float* out = args.out;
  const int64_t stride = args.out_stride;
  args.weight = {stack.format, stack.rows - first_panel * kPanelRows, o.columns,
                 stack.data + first_panel * panel_bytes(stack.format, o.columns)};
  args.out = reinterpret_cast<float*>(place_of(worker) + input_bytes_);
  args.out_stride = panels * kPanelRows;
  kernel(args, 0, panels);
  const float* made = args.out + first_row % kPanelRows;
  for (int64_t t = 0; t < args.num_tokens; ++t)
    std::copy_n(made + t * args.out_stride, o.rows, out + t * stride);
}

}  // namespace potluck
