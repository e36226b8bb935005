#include "program/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "program/gate_kernel.h"

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;  // a cache line, and the widest register

// Work of the cheap ops, in multiply-adds per element.
constexpr int64_t kCopyWork = 1;
constexpr int64_t kNormWork = 2;
constexpr int64_t kExpWork = 16;

// Exponentials, logarithms and quotients of a recurrence's factors, of one head.
constexpr int64_t kFactorsWork = 4 * kExpWork;

// What make_input makes of a token, in floats: keys and queries with their products, and two factors
// for each head.
int64_t input_floats(const op::GatedDelta<int>& o) {
  return o.num_key_heads * (2 * o.key_dim + 1) + 2 * o.num_heads;
}
int64_t input_floats(const op::StateScan<int>& o) { return 2 * o.num_heads; }

// Units are strips of heads. As many as kernels take at once are not cut.
StateShape strip_shape(int64_t num_heads, int64_t rows, int64_t columns, int64_t work) {
  constexpr int64_t kMostAtOnce = 4;
  const int64_t strips = num_state_strips(columns);
  return {num_heads * strips, strips % kMostAtOnce == 0 ? kMostAtOnce : strips, work * rows * 16};
}
int64_t value_dim_of(const op::Attention<int>& o) { return o.value_dim.value_or(o.head_dim); }

AttentionShape shape_of(const op::Attention<int>& o) {
  return {o.num_heads,     o.num_kv_heads, o.head_dim,
          value_dim_of(o), !o.value_start, o.window.value_or(kNoWindow)};
}

}  // namespace

// Where everything lies in the scratch memory.
struct Executor::Layout {
  std::vector<uint64_t> registers;
  uint64_t q, q_scales, q_sums, bf16, attention, attention_floats, partials, head_linear, moe,
      state_inputs, head_input;
  uint64_t num_bytes = 0;

  Layout(const Program& program, int64_t max_tokens, int num_threads, Arithmetic arithmetic) {
    const auto tokens = static_cast<uint64_t>(max_tokens);
    for (const Register& reg : program.spec().registers) {
      registers.push_back(take(tokens * static_cast<uint64_t>(reg.width) * sizeof(float)));
    }
    const auto columns = static_cast<uint64_t>(program.max_width());
    const uint64_t groups = (columns + kGroupColumns - 1) / kGroupColumns;
    q = take(tokens * columns);
    q_scales = take(tokens * groups * sizeof(float));
    q_sums = take(tokens * groups * sizeof(int32_t));
    bf16 = arithmetic == Arithmetic::Fast ? take(tokens * columns * sizeof(uint16_t)) : q;
    int64_t thread_floats = 0, cut_floats = 0;
    const AttentionLimits limits{max_tokens, program.spec().context_tokens, num_threads};
    for (const op::Resolved& any : program.ops()) {
      if (const auto* o = std::get_if<op::Attention<int>>(&any)) {
        const AttentionShape shape = shape_of(*o);
        const int64_t num_rows = attention_part_rows(shape, limits);
        thread_floats =
            std::max(thread_floats, attention_scratch_floats(num_rows, o->head_dim,
                                                             shape.value_dim, shape.has_values));
        cut_floats = std::max(cut_floats, attention_cut_floats(shape, limits));
      }
    }
    // A multiple of the alignment, so that threads share no cache line.
    attention_floats =
        aligned(static_cast<uint64_t>(thread_floats) * sizeof(float)) / sizeof(float);
    attention = take(attention_floats * sizeof(float) * static_cast<uint64_t>(num_threads));
    partials = take(static_cast<uint64_t>(cut_floats) * sizeof(float));
    head_linear = take(HeadLinearRunner::scratch_bytes(program, max_tokens, num_threads));
    moe = take(MoeRunner::scratch_bytes(program, max_tokens));
    int64_t token_floats = 0;
    for (const op::Resolved& any : program.ops()) {
      if (const auto* o = std::get_if<op::GatedDelta<int>>(&any)) {
        token_floats = std::max(token_floats, input_floats(*o));
      } else if (const auto* scan = std::get_if<op::StateScan<int>>(&any)) {
        token_floats = std::max(token_floats, input_floats(*scan));
      }
    }
    state_inputs = take(tokens * static_cast<uint64_t>(token_floats) * sizeof(float));
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
                   int64_t num_blocks, int64_t num_states, int64_t max_step_tokens,
                   int num_threads, Arithmetic arithmetic)
    : program_(program),
      kernels_(kernels),
      arithmetic_(arithmetic),
      weights_(weights),
      phases_(schedule(program.ops())),
      read_ahead_(program, weights),
      states_(program, num_states),
      attention_limits_{max_step_tokens, program.spec().context_tokens, num_threads} {
  Layout layout(program, max_step_tokens, num_threads, arithmetic);
  scratch_ = Buffer(layout.num_bytes, Pages::Huge, "scratch");
  register_offsets_ = std::move(layout.registers);
  q_offset_ = layout.q;
  q_scales_offset_ = layout.q_scales;
  q_sums_offset_ = layout.q_sums;
  bf16_offset_ = layout.bf16;
  attention_offset_ = layout.attention;
  attention_floats_ = layout.attention_floats;
  partials_offset_ = layout.partials;
  state_inputs_offset_ = layout.state_inputs;
  head_input_offset_ = layout.head_input;
  head_linear_.emplace(program, kernels, weights, arithmetic, max_step_tokens,
                       scratch_.data() + layout.head_linear);
  moe_.emplace(program, kernels, weights, arithmetic, max_step_tokens,
               scratch_.data() + layout.moe);
  for (const CacheSpec& spec : program.spec().caches) caches_.emplace_back(spec, num_blocks);
  for (size_t i = 0; i < phases_.size(); ++i) {
    const size_t wide = phases_[i].first_op + phases_[i].row_wise.size();
    const size_t end = i + 1 < phases_.size() ? phases_[i + 1].first_op : program.ops().size();
    timed_phases_.push_back(timer_.add_part(phases_[i].first_op, wide));
    timed_head_ = timer_.add_part(wide, end);  // it ends the last phase, if there is one
  }
}

uint64_t Executor::cache_bytes(const Program& program, int64_t num_blocks, int64_t num_states) {
  uint64_t sum = StateCache::num_bytes(program, num_states);
  for (const CacheSpec& spec : program.spec().caches) {
    sum += KvCache::keys_bytes(spec, num_blocks) + KvCache::values_bytes(spec, num_blocks);
  }
  return sum;
}

uint64_t Executor::scratch_bytes(const Program& program, int64_t max_step_tokens,
                                 int num_threads, Arithmetic arithmetic) {
  return Layout(program, max_step_tokens, num_threads, arithmetic).num_bytes;
}

void Executor::copy_blocks(const std::vector<BlockCopy>& copies) {
  for (const BlockCopy& copy : copies) {
    for (KvCache& cache : caches_) cache.copy_block(copy.source, copy.target);
  }
}

void Executor::copy_states(const std::vector<StateCopy>& copies, ThreadPool::Session& session) {
  if (states_.slot_bytes() == 0) return;
  for (const StateCopy& copy : copies) states_.copy_slot(copy.source, copy.target, session);
}

uint64_t Executor::block_bytes() const {
  uint64_t sum = 0;
  for (const KvCache& cache : caches_) sum += cache.block_bytes();
  return sum;
}

void Executor::read_block(int64_t block, uint8_t* out) const {
  for (const KvCache& cache : caches_) {
    cache.read_block(block, out);
    out += cache.block_bytes();
  }
}

void Executor::write_block(int64_t block, const uint8_t* data) {
  for (KvCache& cache : caches_) {
    cache.write_block(block, data);
    data += cache.block_bytes();
  }
}

void Executor::run(const Batch& batch, ThreadPool::Session& session) {
  divisions_.clear();
  state_divisions_.clear();
  if (batch.num_tokens() == 0) return;
  read_ahead_.begin_step();
  timer_.start();
  for (size_t i = 0; i < phases_.size(); ++i) {
    const Phase& phase = phases_[i];
    read_ahead_.before_op(phase.first_op);
    run_rows(phase, batch, session);
    timer_.add_to(timed_phases_[i]);
    std::visit([&](const auto& o) { run_op(o, batch, session); }, phase.wide);
    timer_.add_to(timed_phases_[i] + 1);
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
  const Matrix& weight = weights_.matrix(*o.weight);
  make_forms(forms(weight, false), input, num_rows, columns, session);
  products_ = {product(weight, nullptr, input, num_rows, logits, false)};
  multiply(products_, session);
  shape_logits(o, logits, num_rows * o.vocab_size, session);
  timer_.add_to(timed_head_);
}

void Executor::shape_logits(const op::Head<int>& o, float* logits, int64_t count,
                            ThreadPool::Session& session) {
  if (o.scale == 1.0f && !o.softcap) return;
  parallel_ranges(session, count, 1, kExpWork, [&](int64_t begin, int64_t end, int) {
    if (o.scale != 1.0f) kernels_.scale(logits + begin, o.scale, end - begin);
    if (o.softcap) kernels_.softcap(logits + begin, *o.softcap, end - begin);
  });
}

void Executor::run_rows(const Phase& phase, const Batch& batch, ThreadPool::Session& session) {
  int64_t work = std::visit([&](const auto& o) { return input_work(o); }, phase.wide);
  for (const RowWise& any : phase.row_wise) {
    work += std::visit([&](const auto& o) { return row_work(o); }, any);
  }
  if (work == 0) return;
  parallel_ranges(session, batch.num_tokens(), 1, work, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (const RowWise& any : phase.row_wise) {
        std::visit([&](const auto& o) { run_row(o, batch, t); }, any);
      }
      std::visit([&](const auto& o) { make_input(o, batch, t); }, phase.wide);
    }
  });
}

int64_t Executor::row_work(const op::Embed<int>& o) const {
  return kCopyWork * program_.width(o.out);
}

void Executor::run_row(const op::Embed<int>& o, const Batch& batch, int64_t t) {
  const Matrix& weight = weights_.matrix(o.weight);
  kernels_.embed[static_cast<int>(weight.format)](weight, batch.rows()[t].token,
                                                  row(o.out, t));
}

int64_t Executor::row_work(const op::RmsNorm<int>& o) const {
  return kNormWork * program_.width(o.x);
}

void Executor::run_row(const op::RmsNorm<int>& o, const Batch&, int64_t t) {
  kernels_.rms_norm(row(o.x, t), vector(o.weight), row(o.out, t), 1, program_.width(o.x), o.group,
                    o.epsilon);
}

int64_t Executor::row_work(const op::LayerNorm<int>& o) const {
  return 2 * kNormWork * program_.width(o.x);
}

void Executor::run_row(const op::LayerNorm<int>& o, const Batch&, int64_t t) {
  kernels_.layer_norm(row(o.x, t), weights_.vector(o.weight), row(o.out, t), 1,
                      program_.width(o.x), o.epsilon);
}

int64_t Executor::row_work(const op::Rope<int>& o) const {
  return kNormWork * o.num_heads * o.rotary_dim;
}

void Executor::run_row(const op::Rope<int>& o, const Batch& batch, int64_t t) {
  const RopeTable& rope = program_.spec().ropes[static_cast<size_t>(o.table)];
  const int64_t angles = batch.rows()[t].position * rope.num_pairs;
  kernels_.rope(row(o.x, t), rope.cos + angles, rope.sin + angles, o.num_heads, o.head_dim,
                o.rotary_dim);
}

int64_t Executor::row_work(const op::GatedActivation<int>& o) const {
  return kExpWork * program_.width(o.out);
}

void Executor::run_row(const op::GatedActivation<int>& o, const Batch&, int64_t t) {
  activate(kernels_, o.activation, o.gate ? row(*o.gate, t) : nullptr, row(o.up, t) + o.up_start,
           row(o.out, t), program_.width(o.out));
}

int64_t Executor::row_work(const op::CopyColumns<int>& o) const {
  return kCopyWork * o.num_groups * o.count;
}

void Executor::run_row(const op::CopyColumns<int>& o, const Batch&, int64_t t) {
  const float* x = row(o.x, t) + o.x_start;
  float* out = row(o.out, t) + o.out_start;
  for (int64_t g = 0; g < o.num_groups; ++g) {
    std::copy_n(x + g * o.x_stride, o.count, out + g * o.out_stride);
  }
}

int64_t Executor::row_work(const op::SigmoidGate<int>& o) const {
  return kExpWork * program_.width(o.gate) + kCopyWork * program_.width(o.x);
}

void Executor::run_row(const op::SigmoidGate<int>& o, const Batch&, int64_t t) {
  float* x = row(o.x, t);
  const float* gate = row(o.gate, t);
  const int64_t columns = program_.width(o.x);
  constexpr int64_t kPart = 256;
  float factors[kPart];
  if (program_.width(o.gate) == 1) {
    kernels_.sigmoid(gate, factors, 1);
    return kernels_.scale(x, factors[0], columns);
  }
  for (int64_t i = 0; i < columns; i += kPart) {
    const int64_t count = std::min(kPart, columns - i);
    kernels_.sigmoid(gate + i, factors, count);
    kernels_.multiply(x + i, factors, count);
  }
}

int64_t Executor::row_work(const op::Scale<int>& o) const {
  return kCopyWork * program_.width(o.x);
}

void Executor::run_row(const op::Scale<int>& o, const Batch&, int64_t t) {
  kernels_.scale(row(o.x, t), o.factor, program_.width(o.x));
}

int64_t Executor::row_work(const op::Multiply<int>& o) const {
  return kCopyWork * program_.width(o.x);
}

void Executor::run_row(const op::Multiply<int>& o, const Batch&, int64_t t) {
  const float* weight = weights_.vector(o.weight);
  const int64_t columns = program_.width(o.x);
  if (weights_.matrix(o.weight).columns == 1) {
    kernels_.scale(row(o.x, t), weight[0], columns);
  } else {
    kernels_.multiply(row(o.x, t), weight, columns);
  }
}

int64_t Executor::row_work(const op::Add<int>& o) const { return kCopyWork * program_.width(o.x); }

void Executor::run_row(const op::Add<int>& o, const Batch&, int64_t t) {
  const int64_t columns = program_.width(o.x);
  if (o.scale == 1.0f) {
    kernels_.add(row(o.x, t), row(o.y, t), columns);
  } else {
    kernels_.add_scaled(row(o.x, t), row(o.y, t), o.scale, columns);
  }
}

bool Executor::uses_fast(const Matrix& weight, bool is_prefill) const {
  return potluck::uses_fast(kernels_, arithmetic_, weight.format, is_prefill);
}

Executor::Forms Executor::forms(const Matrix& weight, bool is_prefill) const {
  if (uses_fast(weight, is_prefill)) return {false, true};
  return {is_quantized(weight.format), false};
}

Executor::Forms Executor::forms(const Linears& linears, bool is_prefill) const {
  Forms all;
  for (const op::Linear<int>& o : linears.ops) {
    const Forms one = forms(weights_.matrix(o.weight), is_prefill);
    all.integers = all.integers || one.integers;
    all.bf16 = all.bf16 || one.bf16;
  }
  return all;
}

int64_t Executor::input_work(const Linears& linears) const {
  const Forms all = forms(linears, false);
  return all.integers || all.bf16 ? kNormWork * program_.width(linears.x) : 0;
}

void Executor::make_input(const Linears& linears, const Batch& batch, int64_t t) {
  make_form_rows(forms(linears, batch.rows()[t].is_prefill), register_data(linears.x),
                 program_.width(linears.x), t, t + 1);
}

void Executor::run_op(const Linears& linears, const Batch& batch, ThreadPool::Session& session) {
  products_.clear();
  for (const op::Linear<int>& o : linears.ops) add_products(o, batch);
  multiply(products_, session);
}

void Executor::run_op(const op::HeadLinear<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  head_linear_->run(o, batch, register_data(o.x), register_data(o.out), session);
}

int64_t Executor::input_work(const op::Attention<int>& o) const {
  const int64_t columns = o.head_dim + (o.v ? value_dim_of(o) : 0);
  return o.k ? kNormWork * o.num_kv_heads * columns : 0;
}

// The key and the value go to the cache of all tokens before any of them looks back.
void Executor::make_input(const op::Attention<int>& o, const Batch& batch, int64_t t) {
  if (!o.k) return;
  const KvCache& cache = caches_[o.cache_index];
  const BatchRow& token = batch.rows()[t];
  kernels_.append_kv(row(*o.k, t), o.v ? row(*o.v, t) : nullptr, cache.keys(), cache.values(),
                     token.block_table[token.position / kBlockTokens],
                     token.position % kBlockTokens, o.num_kv_heads, o.head_dim,
                     o.v ? value_dim_of(o) : 0);
}

void Executor::run_op(const op::Attention<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const KvCache& cache = caches_[o.cache_index];
  const int64_t value_dim = value_dim_of(o);
  const float* q = register_data(o.q);
  float* out = register_data(o.out);

  const AttentionDivision& division = division_for(shape_of(o), batch);
  float* partials = floats(partials_offset_);
  const auto args_of = [&](const auto& part, int worker) {
    const AttentionTile& t = division.tiles[static_cast<size_t>(part.tile)];
    AttentionArgs args{};
    args.q = q + t.first_row * o.num_heads * o.head_dim;
    args.out = out + t.first_row * o.num_heads * value_dim;
    args.num_tokens = t.num_tokens;
    args.position = t.position;
    args.window = o.window.value_or(kNoWindow);
    args.keys = cache.keys();
    args.values = o.value_start ? nullptr : cache.values();
    args.block_table = batch.rows()[static_cast<size_t>(t.first_row)].block_table;
    args.num_heads = o.num_heads;
    args.num_kv_heads = o.num_kv_heads;
    args.head_dim = o.head_dim;
    args.value_dim = value_dim;
    args.value_start = o.value_start.value_or(0);
    args.first_kv_head = part.heads.first_kv_head;
    args.end_kv_head = part.heads.end_kv_head;
    args.first_in_group = part.heads.first_in_group;
    args.end_in_group = part.heads.end_in_group;
    args.scale = o.scale;
    args.softcap = o.softcap.value_or(0.0f);
    args.sinks = vector(o.sinks);
    args.scratch = floats(attention_offset_) + attention_floats_ * static_cast<uint64_t>(worker);
    return args;
  };
  session.parallel_for(division.num_chunks(), [&](int64_t chunk, int worker) {
    const auto begin = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk)]);
    const auto end = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk) + 1]);
    for (size_t i = begin; i < end; ++i) {
      const AttentionPart& part = division.parts[i];
      const AttentionArgs args = args_of(part, worker);
      if (part.partials == kNoPartials) {
        kernels_.attention(args);
        continue;
      }
      float* partial = partials + part.partials;
      for (int64_t span = part.first_span; span < part.end_span; ++span) {
        kernels_.attention_span(args, span, partial);
        partial += attention_partial_floats(attention_rows(args), args.value_dim);
      }
    }
  });
  session.parallel_for(static_cast<int64_t>(division.cuts.size()), [&](int64_t i, int worker) {
    const AttentionCut& cut = division.cuts[static_cast<size_t>(i)];
    kernels_.attention_merge(args_of(cut, worker), partials + cut.partials);
  });
}

const AttentionDivision& Executor::division_for(const AttentionShape& shape, const Batch& batch) {
  for (const auto& [known, division] : divisions_) {
    if (known == shape) return division;
  }
  divisions_.emplace_back(shape, divide_attention(batch.slices(), shape, attention_limits_));
  return divisions_.back().second;
}

template <typename F>
void Executor::run_states(const StateShape& shape, int64_t state_index, const Batch& batch,
                          ThreadPool::Session& session, const F& function) {
  const StateDivision& division = division_for(shape, batch);
  session.parallel_for(division.num_chunks(), [&](int64_t chunk, int) {
    const auto begin = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk)]);
    const auto end = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk) + 1]);
    for (size_t i = begin; i < end; ++i) {
      const StatePart& part = division.parts[i];
      const BatchSlice& slice = batch.slices()[static_cast<size_t>(part.slice)];
      function(slice, states_.state(slice.state, state_index), part.first_unit, part.end_unit);
    }
  });
}

const StateDivision& Executor::division_for(const StateShape& shape, const Batch& batch) {
  for (const auto& [known, division] : state_divisions_) {
    if (known == shape) return division;
  }
  state_divisions_.emplace_back(
      shape, divide_states(batch.slices(), shape, attention_limits_.num_threads));
  return state_divisions_.back().second;
}

void Executor::run_op(const op::CausalConv<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  // Columns by 16, of which neighbours are read at a stretch.
  constexpr int64_t kGranularity = 16;
  const int64_t width = program_.width(o.x);
  const StateShape shape{(width + 15) / 16, kGranularity,
                         16 * (o.kernel + (o.has_silu ? kExpWork : 0))};
  run_states(shape, o.state_index, batch, session,
             [&](const BatchSlice& slice, float* state, int64_t first_unit, int64_t end_unit) {
               kernels_.causal_conv({row(o.x, slice.first_row), row(o.out, slice.first_row),
                                     slice.num_tokens, width, o.kernel, vector(o.weight),
                                     vector(o.bias), state, slice.position == 0, o.has_silu,
                                     16 * first_unit, std::min(16 * end_unit, width)});
             });
}

// Of all tokens of the batch.
struct Executor::DeltaInputs {
  float* keys;      // [key head][token][key, query][key_dim]
  float* products;  // [token][key head]
  float* decays;    // [token][head]
  float* betas;     // likewise
};

Executor::DeltaInputs Executor::delta_inputs(const op::GatedDelta<int>& o, const Batch& batch) {
  const int64_t num_tokens = batch.num_tokens();
  float* keys = floats(state_inputs_offset_);
  float* products = keys + num_tokens * o.num_key_heads * 2 * o.key_dim;
  float* decays = products + num_tokens * o.num_key_heads;
  return {keys, products, decays, decays + num_tokens * o.num_heads};
}

int64_t Executor::input_work(const op::GatedDelta<int>& o) const {
  return 4 * kNormWork * o.num_key_heads * o.key_dim + kFactorsWork * o.num_heads;
}

void Executor::make_input(const op::GatedDelta<int>& o, const Batch& batch, int64_t t) {
  const DeltaInputs inputs = delta_inputs(o, batch);
  kernels_.delta_inputs({row(o.x, t), row(o.decay, t), row(o.beta, t), vector(o.rate),
                         vector(o.decay_bias), o.num_heads, o.num_key_heads, o.key_dim, o.epsilon,
                         inputs.keys + t * 2 * o.key_dim, batch.num_tokens() * 2 * o.key_dim,
                         inputs.products + t * o.num_key_heads, inputs.decays + t * o.num_heads,
                         inputs.betas + t * o.num_heads});
}

void Executor::run_op(const op::GatedDelta<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const DeltaInputs inputs = delta_inputs(o, batch);
  const auto run = [&](const BatchSlice& slice, float* state, int64_t first_unit,
                       int64_t end_unit) {
    const int64_t t = slice.first_row;
    DeltaArgs args{};
    args.keys = inputs.keys + t * 2 * o.key_dim;
    args.key_head_stride = batch.num_tokens() * 2 * o.key_dim;
    args.products = inputs.products + t * o.num_key_heads;
    args.decays = inputs.decays + t * o.num_heads;
    args.betas = inputs.betas + t * o.num_heads;
    args.values = row(o.x, t) + 2 * o.num_key_heads * o.key_dim;
    args.value_stride = program_.width(o.x);
    args.out = row(o.out, t);
    args.out_stride = program_.width(o.out);
    args.num_tokens = slice.num_tokens;
    args.num_heads = o.num_heads;
    args.num_key_heads = o.num_key_heads;
    args.key_dim = o.key_dim;
    args.value_dim = o.value_dim;
    args.is_tiled = o.is_tiled;
    args.is_fresh = slice.position == 0;
    args.state = state;
    args.first_strip = first_unit;
    args.end_strip = end_unit;
    kernels_.gated_delta(args);
  };
  constexpr int64_t kTermWork = 4;  // a product and three multiply-adds
  run_states(strip_shape(o.num_heads, o.key_dim, o.value_dim, kTermWork), o.state_index, batch,
             session, run);
}

// Of all tokens of the batch, [token][head].
struct Executor::ScanInputs {
  float* steps;
  float* decays;
};

Executor::ScanInputs Executor::scan_inputs(const op::StateScan<int>& o, const Batch& batch) {
  float* steps = floats(state_inputs_offset_);
  return {steps, steps + batch.num_tokens() * o.num_heads};
}

int64_t Executor::input_work(const op::StateScan<int>& o) const {
  return kFactorsWork * o.num_heads;
}

void Executor::make_input(const op::StateScan<int>& o, const Batch& batch, int64_t t) {
  const ScanInputs inputs = scan_inputs(o, batch);
  constexpr float kNoLimit = std::numeric_limits<float>::infinity();
  kernels_.scan_inputs({row(o.step, t), vector(o.step_bias), vector(o.rate), o.num_heads,
                        o.least_step, o.largest_step.value_or(kNoLimit),
                        inputs.steps + t * o.num_heads, inputs.decays + t * o.num_heads});
}

void Executor::run_op(const op::StateScan<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const ScanInputs inputs = scan_inputs(o, batch);
  const auto run = [&](const BatchSlice& slice, float* state, int64_t first_unit,
                       int64_t end_unit) {
    const int64_t t = slice.first_row;
    ScanArgs args{};
    args.x = row(o.x, t);
    args.x_stride = program_.width(o.x);
    args.steps = inputs.steps + t * o.num_heads;
    args.decays = inputs.decays + t * o.num_heads;
    args.skip = vector(o.skip);
    args.out = row(o.out, t);
    args.out_stride = program_.width(o.out);
    args.num_tokens = slice.num_tokens;
    args.num_heads = o.num_heads;
    args.head_dim = o.head_dim;
    args.num_groups = o.num_groups;
    args.state_dim = o.state_dim;
    args.is_fresh = slice.position == 0;
    args.state = state;
    args.first_strip = first_unit;
    args.end_strip = end_unit;
    kernels_.state_scan(args);
  };
  constexpr int64_t kTermWork = 3;  // a product and two multiply-adds
  run_states(strip_shape(o.num_heads, o.state_dim, o.head_dim, kTermWork), o.state_index, batch,
             session, run);
}

int64_t Executor::input_work(const op::Moe<int>& o) const {
  const int64_t quantizing = moe_->wants_integers(o) ? kNormWork * program_.width(o.x) : 0;
  return quantizing + kExpWork * o.num_experts;
}

// A row is quantized once for all of its experts.
void Executor::make_input(const op::Moe<int>& o, const Batch&, int64_t t) {
  make_form_rows({moe_->wants_integers(o), false}, register_data(o.x), program_.width(o.x), t,
                 t + 1);
  moe_->choose(o, row(o.logits, t), t);
}

void Executor::run_op(const op::Moe<int>& o, const Batch& batch, ThreadPool::Session& session) {
  moe_->run(o, activations(register_data(o.x)), batch.num_tokens(), register_data(o.out),
            read_ahead_.is_active(), session);
}

Activations Executor::activations(const float* x) {
  return {x, reinterpret_cast<const int8_t*>(scratch_.data() + q_offset_),
          floats(q_scales_offset_),
          reinterpret_cast<const int32_t*>(scratch_.data() + q_sums_offset_),
          reinterpret_cast<const uint16_t*>(scratch_.data() + bf16_offset_)};
}

Product Executor::product(const Matrix& weight, const float* bias, const float* x,
                          int64_t num_tokens, float* out, bool is_prefill) {
  LinearArgs args{};
  args.weight = weight;
  args.input = activations(x);
  args.num_tokens = num_tokens;
  args.bias = bias;
  args.out = out;
  args.out_stride = weight.rows;
  const auto& kernels = uses_fast(weight, is_prefill) ? kernels_.linear_fast : kernels_.linear;
  return {kernels[static_cast<int>(weight.format)], args, kernels_.least_panels};
}

void Executor::add_products(const op::Linear<int>& o, const Batch& batch) {
  const Matrix& weight = weights_.matrix(o.weight);
  const auto of_rows = [&](bool is_prefill) {
    return product(weight, vector(o.bias), register_data(o.x), batch.num_tokens(), register_data(o.out),
                   is_prefill);
  };
  if (uses_fast(weight, true) == uses_fast(weight, false)) {
    products_.push_back(of_rows(false));
    return;
  }
  const int64_t columns = weight.columns;
  const int64_t groups = columns / kGroupColumns;
  for (const RowRange& range : batch.ranges()) {
    Product part = of_rows(range.is_prefill);
    const Activations input = part.args.input;
    part.args.input = {input.x + range.begin * columns, input.q + range.begin * columns,
                       input.scales + range.begin * groups, input.sums + range.begin * groups,
                       input.bf16 + range.begin * columns};
    part.args.num_tokens = range.end - range.begin;
    part.args.out += range.begin * part.args.out_stride;
    products_.push_back(part);
  }
}

void Executor::make_forms(Forms forms, const float* x, int64_t num_tokens, int64_t columns,
                          ThreadPool::Session& session) {
  if (!forms.integers && !forms.bf16) return;
  parallel_ranges(session, num_tokens, 1, kNormWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    make_form_rows(forms, x, columns, begin, end);
                  });
}

void Executor::make_form_rows(Forms forms, const float* x, int64_t columns, int64_t begin,
                              int64_t end) {
  const float* rows = x + begin * columns;
  const int64_t groups = columns / kGroupColumns;
  if (forms.integers) {
    kernels_.quantize(rows, end - begin, columns,
                      reinterpret_cast<int8_t*>(scratch_.data() + q_offset_) + begin * columns,
                      floats(q_scales_offset_) + begin * groups,
                      reinterpret_cast<int32_t*>(scratch_.data() + q_sums_offset_) +
                          begin * groups);
  }
  if (forms.bf16) {
    kernels_.round_bf16(rows, (end - begin) * columns,
                        reinterpret_cast<uint16_t*>(scratch_.data() + bf16_offset_) +
                            begin * columns);
  }
}

}  // namespace potluck
