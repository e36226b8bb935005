#include "program/executor.h"

#include <algorithm>
#include <utility>

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;  // a cache line, and the widest register

// Work of the cheap ops, in multiply-adds per element.
constexpr int64_t kCopyWork = 1;
constexpr int64_t kNormWork = 2;
constexpr int64_t kExpWork = 16;

// Elements of element-wise ops are cut at multiples of this many: whole cache lines.
constexpr int64_t kElementGranularity = 1024;

}  // namespace

// Where everything lies in the scratch memory.
struct Executor::Layout {
  std::vector<uint64_t> registers;
  uint64_t q, q_scales, q_sums, bf16, attention, attention_floats, head_input;
  uint64_t num_bytes = 0;

  Layout(const Program& program, int64_t max_tokens, int num_threads, Prefill prefill) {
    const auto tokens = static_cast<uint64_t>(max_tokens);
    for (const Register& reg : program.spec().registers) {
      registers.push_back(take(tokens * static_cast<uint64_t>(reg.width) * sizeof(float)));
    }
    const auto columns = static_cast<uint64_t>(program.max_width());
    const uint64_t groups = (columns + kGroupColumns - 1) / kGroupColumns;
    q = take(tokens * columns);
    q_scales = take(tokens * groups * sizeof(float));
    q_sums = take(tokens * groups * sizeof(int32_t));
    if (prefill == Prefill::Fast) {
      bf16 = take(tokens * columns * sizeof(uint16_t));
    } else {  // one form at a time
      bf16 = q;
      num_bytes = std::max(num_bytes, bf16 + aligned(tokens * columns * sizeof(uint16_t)));
    }
    // A multiple of the alignment, so that threads share no cache line.
    attention_floats =
        aligned(static_cast<uint64_t>(program.attention_scratch_floats()) * sizeof(float)) /
        sizeof(float);
    attention = take(attention_floats * sizeof(float) * static_cast<uint64_t>(num_threads));
    const int input = program.head_input();
    const uint64_t head_rows = std::min<uint64_t>(tokens, kMaxHeadRows);
    head_input = take(input < 0 ? 0
                                : head_rows * static_cast<uint64_t>(program.width(input)) *
                                      sizeof(float));
  }

 private:
  static uint64_t aligned(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  uint64_t take(uint64_t bytes) {
    const uint64_t offset = num_bytes;
    num_bytes += aligned(bytes);
    return offset;
  }
};

Executor::Executor(const Program& program, const Kernels& kernels, const WeightStore& weights,
                   int64_t num_blocks, int64_t max_step_tokens, int num_threads, Prefill prefill)
    : program_(program),
      kernels_(kernels),
      prefill_(prefill),
      weights_(weights),
      read_ahead_(program, weights),
      timer_(program.ops().size()) {
  Layout layout(program, max_step_tokens, num_threads, prefill);
  scratch_ = Buffer(layout.num_bytes, Pages::Normal, "scratch");
  register_offsets_ = std::move(layout.registers);
  q_offset_ = layout.q;
  q_scales_offset_ = layout.q_scales;
  q_sums_offset_ = layout.q_sums;
  bf16_offset_ = layout.bf16;
  attention_offset_ = layout.attention;
  attention_floats_ = layout.attention_floats;
  head_input_offset_ = layout.head_input;
  for (const CacheSpec& spec : program.spec().caches) caches_.emplace_back(spec, num_blocks);
}

uint64_t Executor::cache_bytes(const Program& program, int64_t num_blocks) {
  uint64_t sum = 0;
  for (const CacheSpec& spec : program.spec().caches) {
    sum += KvCache::keys_bytes(spec, num_blocks) + KvCache::values_bytes(spec, num_blocks);
  }
  return sum;
}

uint64_t Executor::scratch_bytes(const Program& program, int64_t max_step_tokens,
                                 int num_threads, Prefill prefill) {
  return Layout(program, max_step_tokens, num_threads, prefill).num_bytes;
}

void Executor::run(const Batch& batch, ThreadPool::Session& session) {
  quantized_ = nullptr;
  if (batch.num_tokens() == 0) return;
  read_ahead_.begin_step();
  timer_.start();
  for (size_t i = 0; i < program_.ops().size(); ++i) {
    read_ahead_.before_op(i);
    std::visit([&](const auto& o) { run_op(o, batch, session); }, program_.ops()[i]);
    timer_.add_to(i);
  }
}

void Executor::head(const WantedRow* rows, int64_t num_rows, float* logits,
                    ThreadPool::Session& session) {
  timer_.start();
  const auto& o = std::get<op::Head<int>>(program_.ops().back());
  const int64_t columns = program_.width(o.x);
  float* input = floats(head_input_offset_);
  for (int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(register_data(o.x) + rows[i].row * columns, columns, input + i * columns);
  }
  quantized_ = nullptr;
  linear(weights_.matrix(o.weight), nullptr, input, num_rows, logits, session);
  timer_.add_to(program_.ops().size() - 1);
}

void Executor::run_op(const op::Embed<int>& o, const Batch& batch, ThreadPool::Session& session) {
  const Matrix& weight = weights_.matrix(o.weight);
  const auto embed = kernels_.embed[static_cast<int>(weight.format)];
  float* out = register_data(o.out);
  quantized_ = nullptr;
  parallel_ranges(session, batch.num_tokens(), 1, kCopyWork * weight.columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t t = begin; t < end; ++t) {
                      embed(weight, batch.rows()[t].token, out + t * weight.columns);
                    }
                  });
}

void Executor::run_op(const op::RmsNorm<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const int64_t columns = program_.width(o.x);
  const float* x = register_data(o.x);
  const float* weight = weights_.vector(o.weight);
  float* out = register_data(o.out);
  if (quantized_ == out) quantized_ = nullptr;
  parallel_ranges(session, batch.num_tokens(), 1, kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    kernels_.rms_norm(x + begin * columns, weight, out + begin * columns,
                                      end - begin, columns, o.group, o.epsilon);
                  });
}

void Executor::run_op(const op::Linear<int>& o, const Batch& batch, ThreadPool::Session& session) {
  const float* bias = o.bias ? weights_.vector(*o.bias) : nullptr;
  float* out = register_data(o.out);
  const Matrix& weight = weights_.matrix(o.weight);
  if (const LinearKernel fast = fast_kernel(weight)) {
    linear_by_row(weight, bias, register_data(o.x), batch, out, fast, session);
  } else {
    linear(weight, bias, register_data(o.x), batch.num_tokens(), out, session);
  }
  if (quantized_ == out) quantized_ = nullptr;
}

void Executor::run_op(const op::Rope<int>& o, const Batch& batch, ThreadPool::Session& session) {
  const RopeTable& rope = program_.spec().rope;
  const int64_t columns = o.num_heads * o.head_dim;
  float* x = register_data(o.x);
  if (quantized_ == x) quantized_ = nullptr;
  parallel_ranges(session, batch.num_tokens(), 1, kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t t = begin; t < end; ++t) {
                      const int64_t row = batch.rows()[t].position * rope.half_head_dim;
                      kernels_.rope(x + t * columns, rope.cos + row,
                                    rope.sin + row, o.num_heads, o.head_dim);
                    }
                  });
}

void Executor::append_kv(const op::Attention<int>& o, const Batch& batch,
                         ThreadPool::Session& session) {
  const KvCache& cache = caches_[o.cache_index];
  const int64_t columns = o.num_kv_heads * o.head_dim;
  const float* k = register_data(o.k);
  const float* v = register_data(o.v);
  parallel_ranges(session, batch.num_tokens(), 1, 2 * kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t t = begin; t < end; ++t) {
                      const BatchRow& row = batch.rows()[t];
                      kernels_.append_kv(k + t * columns, v + t * columns, cache.keys(),
                                         cache.values(),
                                         row.block_table[row.position / kBlockTokens],
                                         row.position % kBlockTokens, o.num_kv_heads, o.head_dim);
                    }
                  });
}

void Executor::run_op(const op::Attention<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  append_kv(o, batch, session);  // of all tokens, before any of them looks back
  const KvCache& cache = caches_[o.cache_index];
  const int64_t columns = o.num_heads * o.head_dim;
  const float* q = register_data(o.q);
  float* out = register_data(o.out);
  if (quantized_ == out) quantized_ = nullptr;

  // One item is a token and a key-value head. Items differ in cost by how far back they look, so
  // chunks are many, and taken from the end, where the dear ones of a prompt are.
  const auto first_position = [&](const BatchRow& row) {
    return o.window ? std::max<int64_t>(0, row.position + 1 - *o.window) : 0;
  };
  const int64_t num_items = batch.num_tokens() * o.num_kv_heads;
  int64_t num_visible = 0;
  for (const BatchRow& row : batch.rows()) num_visible += row.position + 1 - first_position(row);
  const int64_t work = 2 * num_visible * columns;
  const int64_t num_chunks = std::clamp<int64_t>(work / kMinChunkWork, 1, num_items);
  session.parallel_for(num_chunks, [&](int64_t chunk, int worker) {
    const int64_t from_end = num_chunks - chunk;
    const int64_t end = num_items * from_end / num_chunks;
    for (int64_t item = num_items * (from_end - 1) / num_chunks; item < end; ++item) {
      const int64_t t = item / o.num_kv_heads;
      const BatchRow& row = batch.rows()[t];
      AttentionArgs args{};
      args.q = q + t * columns;
      args.out = out + t * columns;
      args.keys = cache.keys();
      args.values = cache.values();
      args.block_table = row.block_table;
      args.first_position = first_position(row);
      args.position = row.position;
      args.num_heads = o.num_heads;
      args.num_kv_heads = o.num_kv_heads;
      args.head_dim = o.head_dim;
      args.scale = o.scale;
      args.scratch =
          floats(attention_offset_) + attention_floats_ * static_cast<uint64_t>(worker);
      kernels_.attention(args, item % o.num_kv_heads);
    }
  });
}

void Executor::run_op(const op::GatedActivation<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const float* gate = register_data(o.gate);
  const float* up = register_data(o.up);
  float* out = register_data(o.out);
  if (quantized_ == out) quantized_ = nullptr;
  parallel_ranges(session, batch.num_tokens() * program_.width(o.out), kElementGranularity,
                  kExpWork, [&](int64_t begin, int64_t end, int) {
                    kernels_.silu_gate(gate + begin, up + begin, out + begin, end - begin);
                  });
}

void Executor::run_op(const op::Add<int>& o, const Batch& batch, ThreadPool::Session& session) {
  float* x = register_data(o.x);
  const float* y = register_data(o.y);
  if (quantized_ == x) quantized_ = nullptr;
  parallel_ranges(session, batch.num_tokens() * program_.width(o.x), kElementGranularity, kCopyWork,
                  [&](int64_t begin, int64_t end, int) {
                    kernels_.add(x + begin, y + begin, end - begin);
                  });
}

Executor::LinearKernel Executor::fast_kernel(const Matrix& weight) const {
  if (prefill_ == Prefill::Exact) return nullptr;
  return kernels_.linear_fast[static_cast<int>(weight.format)];
}

LinearArgs Executor::linear_args(const Matrix& weight, const float* bias, const float* x,
                                 int64_t num_tokens, float* out) {
  LinearArgs args{};
  args.weight = weight;
  args.input = {x, reinterpret_cast<const int8_t*>(scratch_.data() + q_offset_),
                floats(q_scales_offset_),
                reinterpret_cast<const int32_t*>(scratch_.data() + q_sums_offset_),
                reinterpret_cast<const uint16_t*>(scratch_.data() + bf16_offset_)};
  args.num_tokens = num_tokens;
  args.bias = bias;
  args.out = out;
  args.out_stride = weight.rows;
  return args;
}

void Executor::linear(const Matrix& weight, const float* bias, const float* x, int64_t num_tokens,
                      float* out, ThreadPool::Session& session) {
  if (is_quantized(weight.format)) {
    quantize(x, num_tokens, weight.columns, session);
  } else if (weight.format == Format::BF16 && kernels_.bf16_activations) {
    round_bf16(x, num_tokens, weight.columns, session);
  }
  const LinearArgs args = linear_args(weight, bias, x, num_tokens, out);
  const auto kernel = kernels_.linear[static_cast<int>(weight.format)];
  parallel_ranges(session, num_panels(weight.rows), 1, kPanelRows * weight.columns * num_tokens,
                  [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
}

void Executor::linear_by_row(const Matrix& weight, const float* bias, const float* x,
                             const Batch& batch, float* out, LinearKernel fast,
                             ThreadPool::Session& session) {
  const int64_t columns = weight.columns;
  const int64_t groups = columns / kGroupColumns;
  convert_by_row(x, batch, columns, session);
  const LinearArgs whole = linear_args(weight, bias, x, batch.num_tokens(), out);
  const auto exact = kernels_.linear[static_cast<int>(weight.format)];
  parallel_ranges(
      session, num_panels(weight.rows), 1, kPanelRows * columns * batch.num_tokens(),
      [&](int64_t begin, int64_t end, int) {
        for (const RowRange& range : batch.ranges()) {
          LinearArgs args = whole;
          args.input = {whole.input.x + range.begin * columns,
                        whole.input.q + range.begin * columns,
                        whole.input.scales + range.begin * groups,
                        whole.input.sums + range.begin * groups,
                        whole.input.bf16 + range.begin * columns};
          args.num_tokens = range.end - range.begin;
          args.out = out + range.begin * whole.out_stride;
          (range.is_prefill ? fast : exact)(args, begin, end);
        }
      });
}

void Executor::quantize(const float* x, int64_t num_tokens, int64_t columns,
                        ThreadPool::Session& session) {
  if (quantized_ == x && quantized_form_ == Form::Integers) return;
  auto* q = reinterpret_cast<int8_t*>(scratch_.data() + q_offset_);
  float* scales = floats(q_scales_offset_);
  auto* sums = reinterpret_cast<int32_t*>(scratch_.data() + q_sums_offset_);
  const int64_t groups = columns / kGroupColumns;
  parallel_ranges(session, num_tokens, 1, kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    kernels_.quantize(x + begin * columns, end - begin, columns,
                                      q + begin * columns, scales + begin * groups,
                                      sums + begin * groups);
                  });
  quantized_ = x;
  quantized_form_ = Form::Integers;
}

void Executor::round_bf16(const float* x, int64_t num_tokens, int64_t columns,
                          ThreadPool::Session& session) {
  if (quantized_ == x && quantized_form_ == Form::Bf16) return;
  auto* bf16 = reinterpret_cast<uint16_t*>(scratch_.data() + bf16_offset_);
  parallel_ranges(session, num_tokens, 1, kCopyWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    kernels_.round_bf16(x + begin * columns, (end - begin) * columns,
                                        bf16 + begin * columns);
                  });
  quantized_ = x;
  quantized_form_ = Form::Bf16;
}

void Executor::convert_by_row(const float* x, const Batch& batch, int64_t columns,
                              ThreadPool::Session& session) {
  if (quantized_ == x && quantized_form_ == Form::ByRow) return;
  auto* q = reinterpret_cast<int8_t*>(scratch_.data() + q_offset_);
  float* scales = floats(q_scales_offset_);
  auto* sums = reinterpret_cast<int32_t*>(scratch_.data() + q_sums_offset_);
  auto* bf16 = reinterpret_cast<uint16_t*>(scratch_.data() + bf16_offset_);
  const int64_t groups = columns / kGroupColumns;
  parallel_ranges(session, batch.num_tokens(), 1, kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (const RowRange& range : batch.ranges()) {
                      const int64_t first = std::max(begin, range.begin);
                      const int64_t count = std::min(end, range.end) - first;
                      if (count <= 0) continue;
                      const float* rows = x + first * columns;
                      if (range.is_prefill) {
                        kernels_.round_bf16(rows, count * columns, bf16 + first * columns);
                      } else {
                        kernels_.quantize(rows, count, columns, q + first * columns,
                                          scales + first * groups, sums + first * groups);
                      }
                    }
                  });
  quantized_ = x;
  quantized_form_ = Form::ByRow;
}

}  // namespace potluck
