#include "program/executor.h"

#include <algorithm>
#include <utility>

#include "program/op_work.h"

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;  // a cache line, and the widest register

// The result of make_input per token, in floats: keys and queries with their products, and two
// factors for each head.
int64_t input_floats(const op::GatedDelta<int>& o) {
  return o.num_key_heads * (2 * o.key_dim + 1) + 2 * o.num_heads;
}
int64_t input_floats(const op::StateScan<int>& o) { return 2 * o.num_heads; }

}  // namespace

// The layout of the scratch memory.
struct Executor::Layout {
  std::vector<uint64_t> registers;
  uint64_t q, q_scales, q_sums, bf16, attention, attention_floats, partials, head_linear, moe,
      state_inputs, head_input, messages;
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
    // A multiple of the alignment, so that threads do not share cache lines.
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
    // In two parts with separate lines.
    messages = program.is_part()
                   ? take(message_bytes(program, max_tokens) + message_bytes(program, 0))
                   : 0;
  }

  // The messages of all members, for the largest exchange of this many rows.
  static uint64_t message_bytes(const Program& program, int64_t max_tokens) {
    const int64_t num_members = program.spec().num_members;
    uint64_t bytes = MoeRunner::message_bytes(program, max_tokens);
    const auto add = [&](int out) {
      bytes = std::max(bytes, SliceExchange::message_bytes(max_tokens, program.width(out),
                                                           num_members));
    };
    for (const op::Resolved& any : program.ops()) {
      if (const auto* gather = std::get_if<op::AllGather<int>>(&any)) add(gather->out);
      const auto* embed = std::get_if<op::Embed<int>>(&any);
      if (embed != nullptr && !embed->bounds.empty()) add(embed->out);
    }
    return bytes;
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
      gathers_(program),
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
  messages_offset_ = layout.messages;
  head_linear_.emplace(program, kernels, weights, arithmetic, max_step_tokens,
                       scratch_.data() + layout.head_linear);
  moe_.emplace(program, kernels, weights, arithmetic, max_step_tokens,
               scratch_.data() + layout.moe);
  for (const CacheSpec& spec : program.spec().caches) caches_.emplace_back(spec, num_blocks);
  for (size_t i = 0; i < phases_.size(); ++i) {
    const size_t wide = phases_[i].first_op + phases_[i].row_wise.size();
    const size_t end = i + 1 < phases_.size() ? phases_[i + 1].first_op : program.ops().size();
    timed_phases_.push_back(timer_.add_part(phases_[i].first_op, wide));
    timed_head_ = timer_.add_part(wide, end);  // it ends the last phase, if any
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

// Two halves of a prompt are as fast as the whole only above some number of tokens, because weights
// are read once for each.
std::optional<int64_t> Executor::second_part(const Batch& batch) const {
  constexpr int64_t kLeastTokens = 128;
  constexpr int64_t kGranularity = 32;  // for kernels with many tokens
  if (!program_.is_part() || batch.num_tokens() < kLeastTokens) return std::nullopt;
  return batch.num_tokens() / 2 / kGranularity * kGranularity;
}

SliceExchange Executor::messages_from(int64_t first_row) {
  const uint64_t offset =
      first_row == 0 ? 0
                     : (Layout::message_bytes(program_, first_row) + kAlignment - 1) / kAlignment *
                           kAlignment;
  return SliceExchange(kernels_, program_.spec().member,
                       scratch_.data() + messages_offset_ + offset);
}

void Executor::run(const Batch& batch, Exchange* exchange, ThreadPool::Session& session) {
  if (batch.num_tokens() == 0) return;
  read_ahead_.begin_step();
  timer_.start();
  exchange_ = exchange;
  std::vector<Part> parts;
  parts.reserve(2);
  const std::optional<int64_t> second = second_part(batch);
  if (!second) {
    parts.emplace_back(batch, 0, messages_from(0));
    return run_phases(parts, session);
  }
  const Batch first_rows(batch, 0, *second), other_rows(batch, *second, batch.num_tokens());
  parts.emplace_back(first_rows, 0, messages_from(0));
  parts.emplace_back(other_rows, *second, messages_from(*second));
  ExchangeQueue::Step queued(queue_, *exchange);
  exchange_ = queued_ = &queued;
  run_phases(parts, session);
}

void Executor::run_phases(std::vector<Part>& parts, ThreadPool::Session& session) {
  struct AtEnd {
    Executor& executor;
    ~AtEnd() {
      executor.first_row_ = 0;
      executor.part_ = nullptr;
      executor.queued_ = nullptr;
    }
  } at_end{*this};
  // From one gather to the next, so that computing the other part hides it.
  const auto gathers = [&](size_t i) {
    return std::holds_alternative<op::AllGather<int>>(phases_[i].wide);
  };
  for (size_t begin = 0, end = 0; begin < phases_.size(); begin = end) {
    while (end < phases_.size() && !gathers(end)) ++end;
    if (end < phases_.size()) ++end;
    for (Part& part : parts) {
      part_ = &part;
      first_row_ = part.first_row;
      if (part.exchange) {
        take_gathered(part, session);
        timer_.add_to(timed_phases_[begin - 1] + 1);
      }
      for (size_t i = begin; i < end; ++i) {
        if (&part == &parts.front()) read_ahead_.before_op(phases_[i].first_op);
        run_phase(i, part, session);
      }
    }
  }
  for (Part& part : parts) {
    first_row_ = part.first_row;
    if (part.exchange) take_gathered(part, session);
  }
}

void Executor::run_phase(size_t index, Part& part, ThreadPool::Session& session) {
  const Phase& phase = phases_[index];
  const size_t wide = phase.first_op + phase.row_wise.size();
  gather_ = wide < program_.ops().size() ? gathers_.at(wide) : nullptr;
  if (std::holds_alternative<op::AllGather<int>>(phase.wide)) begin_gather(part);
  run_rows(phase, part.batch, session);
  timer_.add_to(timed_phases_[index]);
  std::visit([&](const auto& o) { run_op(o, part.batch, session); }, phase.wide);
  timer_.add_to(timed_phases_[index] + 1);
}

void Executor::take_gathered(Part& part, ThreadPool::Session& session) {
  queued_->wait(*part.exchange);
  part.exchange.reset();
  part.slices.take_all(session);
}

void Executor::head(const WantedRow* rows, int64_t num_rows, const std::vector<bool>& largest,
                    float* logits, Exchange* exchange, ThreadPool::Session& session) {
  const auto& o = std::get<op::Head<int>>(program_.ops().back());
  const bool is_divided = !o.bounds.empty();
  if (program_.is_led() && !is_divided) return;
  timer_.start();
  const int64_t columns = program_.width(o.x);
  float* input = floats(head_input_offset_);
  for (int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(register_data(o.x) + rows[i].row * columns, columns, input + i * columns);
  }
  const Matrix& weight = weights_.matrix(*o.weight);
  make_forms(forms(weight, false), input, num_rows, columns, session);
  products_ = {product(weight, nullptr, activations(input), num_rows, logits, false)};
  const int64_t stride = program_.is_led() ? weight.rows : o.vocab_size;
  products_.front().args.out_stride = stride;
  multiply(products_, session);
  if (is_divided) {
    for (int64_t i = 0; i < num_rows; ++i) {
      shape_logits(o, logits + i * stride, weight.rows, session);
    }
    exchange_logits(o, num_rows, largest, logits, *exchange, session);
  } else {
    shape_logits(o, logits, num_rows * o.vocab_size, session);
  }
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
  if (has_gathered_input()) return 0;
  const Forms all = forms(linears, false);
  return all.integers || all.bf16 ? kNormWork * program_.width(linears.x) : 0;
}

void Executor::make_input(const Linears& linears, const Batch& batch, int64_t t) {
  if (has_gathered_input()) return;
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
            read_ahead_.is_active(), part_->slices, exchange_, session);
}

Activations Executor::activations(const float* x) {
  return {x, reinterpret_cast<const int8_t*>(scratch_.data() + q_offset_),
          floats(q_scales_offset_),
          reinterpret_cast<const int32_t*>(scratch_.data() + q_sums_offset_),
          reinterpret_cast<const uint16_t*>(scratch_.data() + bf16_offset_)};
}

Activations Executor::input_of(const op::Linear<int>& o, int64_t num_rows) {
  if (!has_gathered_input()) return activations(register_data(o.x));
  const MutableActivations input = gathered(*gather_, num_rows);
  return {input.x, input.q, input.scales, input.sums, input.bf16};
}

Product Executor::product(const Matrix& weight, const float* bias, const Activations& input,
                          int64_t num_tokens, float* out, bool is_prefill) {
  LinearArgs args{};
  args.weight = weight;
  args.input = input;
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
    return product(weight, vector(o.bias), input_of(o, batch.num_tokens()), batch.num_tokens(), register_data(o.out),
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
