#include "program/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "program/gate_kernel.h"

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;

// Cost per element in multiply-adds, for parallel loops.
constexpr int64_t kCopyWork = 1;
constexpr int64_t kExpWork = 16;
constexpr int64_t kQuantizeWork = 2;

// The number of rows of `gate` and `up` of an expert that the program has.
int64_t own_width(const Program& program, const op::Moe<int>& o) {
  return program.spec().weights[static_cast<size_t>(o.up)].shape[1];
}

// The maximum over all Moe ops.
struct Sizes {
  int64_t experts = 0, chosen = 0, expert_width = 0, gate_width = 0, divided_width = 0, columns = 0,
          groups = 0;

  explicit Sizes(const Program& program) {
    for (const op::Resolved& any : program.ops()) {
      if (const auto* o = std::get_if<op::Moe<int>>(&any)) {
        experts = std::max(experts, o->num_experts);
        chosen = std::max(chosen, o->num_experts_per_token);
        expert_width = std::max(expert_width, o->expert_width);
        if (o->gate) gate_width = std::max(gate_width, own_width(program, *o));
        if (!o->expert_widths.empty()) {
          divided_width = std::max(divided_width, own_width(program, *o));
        }
        columns = std::max({columns, program.width(o->x), program.width(o->out)});
        groups = std::max(groups, o->num_groups);
      }
    }
  }
};

// Sets `found`, ascending, to the indices of the `num` largest values; ties go to lower indices.
void find_largest(const float* values, int64_t count, int64_t num, int32_t* found) {
  // Largest first; a later value precedes only smaller ones.
  int64_t num_found = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (num_found == num && !(values[i] > values[found[num - 1]])) continue;
    int64_t place = num_found < num ? num_found++ : num - 1;
    for (; place > 0 && values[i] > values[found[place - 1]]; --place) {
      found[place] = found[place - 1];
    }
    found[place] = static_cast<int32_t>(i);
  }
  std::sort(found, found + num);
}

// The activations from row `row` on; a row has `columns` columns.
Activations rows_from(const Activations& all, int64_t row, int64_t columns) {
  const int64_t groups = columns / kGroupColumns;
  return {all.x + row * columns, all.q + row * columns, all.scales + row * groups,
          all.sums + row * groups, all.bf16 + row * columns};
}

}  // namespace

// The layout of the scratch memory.
struct MoeRunner::Layout {
  Scratch scratch{};
  std::map<int, float*> biases;
  uint64_t num_bytes = 0;

  Layout(const Program& program, int64_t max_tokens, uint8_t* base) : base_(base) {
    const Sizes sizes(program);
    if (sizes.experts == 0) return;
    const int64_t rows = max_tokens * sizes.chosen;
    const int64_t q_columns = std::max(sizes.columns, sizes.expert_width);
    const int64_t q_groups = (q_columns + kGroupColumns - 1) / kGroupColumns;
    take(scratch.experts, rows);
    take(scratch.shares, rows);
    take(scratch.rows, rows);
    take(scratch.scores, max_tokens * sizes.experts);
    take(scratch.preferences, max_tokens * sizes.experts);
    take(scratch.group_sums, max_tokens * sizes.groups);
    take(scratch.groups, max_tokens * sizes.groups);
    take(scratch.tokens, rows);
    take(scratch.x, rows * sizes.columns);
    take(scratch.gate, rows * sizes.gate_width);
    take(scratch.own_up, rows * sizes.divided_width);
    take(scratch.up, rows * sizes.expert_width);
    take(scratch.q, rows * q_columns);
    take(scratch.q_scales, rows * q_groups);
    take(scratch.q_sums, rows * q_groups);
    take(scratch.bf16, rows * q_columns);
    take(scratch.first_rows, sizes.experts + 1);
    for (const op::Resolved& any : program.ops()) {
      const auto* o = std::get_if<op::Moe<int>>(&any);
      if (o == nullptr) continue;
      for (const std::optional<int> bias : {o->gate_bias, o->up_bias, o->down_bias}) {
        if (!bias || biases.count(*bias) != 0) continue;
        const std::vector<int64_t>& shape = program.spec().weights[*bias].shape;
        take(biases[*bias], shape[0] * shape[1]);
      }
    }
  }

 private:
  template <typename T>
  void take(T*& place, int64_t count) {
    if (base_ != nullptr) place = reinterpret_cast<T*>(base_ + num_bytes);
    num_bytes += (static_cast<uint64_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment *
                 kAlignment;
  }
  uint8_t* const base_;
};

uint64_t MoeRunner::scratch_bytes(const Program& program, int64_t max_tokens) {
  return Layout(program, max_tokens, nullptr).num_bytes;
}

uint64_t MoeRunner::message_bytes(const Program& program, int64_t max_tokens) {
  uint64_t bytes = 0;
  for (const op::Resolved& any : program.ops()) {
    const auto* o = std::get_if<op::Moe<int>>(&any);
    if (o == nullptr || o->expert_widths.empty()) continue;
    bytes = std::max(bytes, SliceExchange::message_bytes(max_tokens * o->num_experts_per_token,
                                                         o->expert_width,
                                                         program.spec().num_members));
  }
  return bytes;
}

MoeRunner::MoeRunner(const Program& program, const Kernels& kernels, const WeightStore& weights,
                     Arithmetic arithmetic, int64_t max_tokens, uint8_t* scratch)
    : kernels_(kernels),
      weights_(weights),
      arithmetic_(arithmetic) {
  Layout layout(program, max_tokens, scratch);
  scratch_ = layout.scratch;
  biases_ = std::move(layout.biases);
}

bool MoeRunner::wants_integers(const op::Moe<int>& o) const {
  return (o.gate && is_quantized(weights_.matrix(*o.gate).format)) ||
         is_quantized(weights_.matrix(o.up).format);
}

bool MoeRunner::takes_bf16(const Matrix& stack) const {
  return uses_fast(kernels_, arithmetic_, stack.format, false);
}

SliceForm MoeRunner::inner_form(const op::Moe<int>& o) const {
  const Matrix& down = weights_.matrix(o.down);
  if (is_quantized(down.format)) {
    return has_whole_groups(o.expert_widths) ? SliceForm::Integers : SliceForm::Floats;
  }
  return takes_bf16(down) ? SliceForm::Bf16 : SliceForm::Floats;
}

void MoeRunner::run(const op::Moe<int>& o, const Activations& input, int64_t num_tokens,
                    float* out, bool may_be_absent, SliceExchange& slices, Exchange* exchange,
                    ThreadPool::Session& session) {
  slices_ = &slices;
  const Matrix &up = weights_.matrix(o.up), &down = weights_.matrix(o.down);
  const Scratch& s = scratch_;
  const int64_t num_rows = group(o, num_tokens);
  bring_in(o, may_be_absent);
  parallel_ranges(session, num_rows, 1, kCopyWork * up.columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t row = begin; row < end; ++row) gather(o, input, row);
                  });
  unpack_biases();
  products_.clear();
  if (o.gate) add_products(o, weights_.matrix(*o.gate), o.gate_bias, s.x, s.gate);
  const bool is_divided = !o.expert_widths.empty();
  add_products(o, up, o.up_bias, s.x, is_divided ? s.own_up : s.up);
  multiply(products_, session);
  if (is_divided) {
    slices.begin(o.expert_widths, {{0, num_rows, inner_form(o)}},
                  {s.up, s.q, s.q_scales, s.q_sums, s.bf16});
  }
  parallel_ranges(session, num_rows, 1, (kExpWork + kQuantizeWork) * o.expert_width,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t row = begin; row < end; ++row) activate(o, row);
                  });
  if (is_divided) {
    slices.run(*exchange, session);
    if (inner_form(o) == SliceForm::Floats) {
      parallel_ranges(session, num_rows, 1, kQuantizeWork * o.expert_width,
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t row = begin; row < end; ++row) make_inner_forms(o, row);
                      });
    }
  }
  products_.clear();
  add_products(o, down, o.down_bias, s.up, s.x);
  multiply(products_, session);
  const int64_t out_columns = down.rows / o.num_experts;
  parallel_ranges(session, num_tokens, 1, kCopyWork * o.num_experts_per_token * out_columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t t = begin; t < end; ++t) add_up(o, t, out + t * out_columns);
                  });
}

void MoeRunner::choose(const op::Moe<int>& o, const float* logits, int64_t token) {
  int32_t* chosen = scratch_.experts + token * o.num_experts_per_token;
  float max = -std::numeric_limits<float>::infinity();
  bool has_nan = false;
  for (int64_t e = 0; e < o.num_experts; ++e) {
    has_nan |= std::isnan(logits[e]);
    max = std::max(max, logits[e]);
  }
  if (has_nan || !std::isfinite(max)) {
    chosen[0] = kNoExpert;
    return;
  }
  float* scores = scratch_.scores + token * o.num_experts;
  float total = 1.0f;  // the divisor of the scores
  if (o.score == op::ExpertScore::Sigmoid) {
    kernels_.sigmoid(logits, scores, o.num_experts);
  } else {
    total = kernels_.exp_sum(logits, o.num_experts, max, scores);
  }
  float* preferences = scratch_.preferences + token * o.num_experts;
  if (o.e_score_correction_bias || o.score == op::ExpertScore::Sigmoid) {
    for (int64_t e = 0; e < o.num_experts; ++e) preferences[e] = scores[e] / total;
    if (o.e_score_correction_bias) {
      kernels_.add(preferences, weights_.vector(*o.e_score_correction_bias), o.num_experts);
    }
  } else {
    std::copy_n(logits, o.num_experts, preferences);
  }
  if (o.num_groups > 1) leave_groups_out(o, token, preferences);
  find_largest(preferences, o.num_experts, o.num_experts_per_token, chosen);

  float* shares = scratch_.shares + token * o.num_experts_per_token;
  float of_chosen = 0;
  for (int64_t i = 0; i < o.num_experts_per_token; ++i) {
    shares[i] = scores[chosen[i]] / total;
    of_chosen += shares[i];
  }
  const float* expert_scale = o.expert_scale ? weights_.vector(*o.expert_scale) : nullptr;
  for (int64_t i = 0; i < o.num_experts_per_token; ++i) {
    if (o.norm_topk_prob) shares[i] /= of_chosen;
    shares[i] *= o.share_scale;
    if (expert_scale) shares[i] *= expert_scale[chosen[i]];
  }
}

// Excludes the experts of all groups except the best from the choice for one token.
void MoeRunner::leave_groups_out(const op::Moe<int>& o, int64_t token, float* preferences) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const int64_t group_size = o.num_experts / o.num_groups;
  float* sums = scratch_.group_sums + token * o.num_groups;
  for (int64_t g = 0; g < o.num_groups; ++g) {
    const float* group = preferences + g * group_size;
    float first = std::max(group[0], group[1]), second = std::min(group[0], group[1]);
    for (int64_t i = 2; i < group_size; ++i) {
      second = std::max(second, std::min(first, group[i]));
      first = std::max(first, group[i]);
    }
    sums[g] = first + second;
  }
  int32_t* used = scratch_.groups + token * o.num_groups;
  find_largest(sums, o.num_groups, o.num_groups_used, used);
  for (int64_t g = 0; g < o.num_groups; ++g) {
    if (!std::binary_search(used, used + o.num_groups_used, static_cast<int32_t>(g))) {
      std::fill_n(preferences + g * group_size, group_size, kNever);
    }
  }
}

// Assigns a row to every chosen expert of every token; rows of one expert are contiguous and in the
// order of tokens. Returns the number of rows.
int64_t MoeRunner::group(const op::Moe<int>& o, int64_t num_tokens) {
  const Scratch& s = scratch_;
  const int64_t num_chosen = o.num_experts_per_token;
  const auto for_chosen = [&](const auto& function) {
    for (int64_t t = 0; t < num_tokens; ++t) {
      if (s.experts[t * num_chosen] == kNoExpert) continue;
      for (int64_t i = t * num_chosen; i < (t + 1) * num_chosen; ++i) function(t, i);
    }
  };
  std::fill_n(s.first_rows, o.num_experts + 1, 0);
  for_chosen([&](int64_t, int64_t i) { ++s.first_rows[s.experts[i] + 1]; });
  for (int64_t e = 0; e < o.num_experts; ++e) s.first_rows[e + 1] += s.first_rows[e];
  // During assignment, each entry is the expert's next row; afterwards, it is the first row of the
  // next expert.
  for_chosen([&](int64_t t, int64_t i) {
    s.rows[i] = s.first_rows[s.experts[i]]++;
    s.tokens[s.rows[i]] = static_cast<int32_t>(t);
  });
  for (int64_t e = o.num_experts; e > 0; --e) s.first_rows[e] = s.first_rows[e - 1];
  s.first_rows[0] = 0;
  return s.first_rows[o.num_experts];
}

// Requests the chosen mapped experts that are not in memory, all of them at once, so that the disk
// is kept as busy as possible, and the last ones arrive while others are being computed.
void MoeRunner::bring_in(const op::Moe<int>& o, bool may_be_absent) {
  int64_t num_used = 0, num_in_memory = 0;
  const auto for_stack = [&](int index) {
    if (!weights_.is_mapped(index)) return;
    const uint64_t expert_bytes =
        weights_.mapped_bytes(index) / static_cast<uint64_t>(o.num_experts);
    for (int64_t e = 0; e < o.num_experts; ++e) {
      if (scratch_.first_rows[e + 1] == scratch_.first_rows[e]) continue;
      const uint64_t offset = static_cast<uint64_t>(e) * expert_bytes;
      ++num_used;
      if (!may_be_absent || weights_.is_in_memory(index, offset, expert_bytes)) {
        ++num_in_memory;
      } else {
        weights_.ask_for(index, offset, expert_bytes);
      }
    }
  };
  if (o.gate) for_stack(*o.gate);
  for_stack(o.up);
  for_stack(o.down);
  num_used_.fetch_add(num_used, std::memory_order_relaxed);
  num_in_memory_.fetch_add(num_in_memory, std::memory_order_relaxed);
}

// Copies the input of one row, in the forms that its products read.
void MoeRunner::gather(const op::Moe<int>& o, const Activations& input, int64_t row) {
  const Scratch& s = scratch_;
  const Matrix& up = weights_.matrix(o.up);
  const int64_t columns = up.columns, groups = columns / kGroupColumns;
  const int64_t token = s.tokens[row];
  const float* x = input.x + token * columns;
  bool floats = false, bf16 = false;
  for (const Matrix* stack : {o.gate ? &weights_.matrix(*o.gate) : &up, &up}) {
    bf16 = bf16 || takes_bf16(*stack);
    floats = floats || (!is_quantized(stack->format) && !takes_bf16(*stack));
  }
  if (floats) std::copy_n(x, columns, s.x + row * columns);
  if (bf16) kernels_.round_bf16(x, columns, s.bf16 + row * columns);  // as cheap as a copy
  if (!wants_integers(o)) return;
  std::copy_n(input.q + token * columns, columns, s.q + row * columns);
  std::copy_n(input.scales + token * groups, groups, s.q_scales + row * groups);
  std::copy_n(input.sums + token * groups, groups, s.q_sums + row * groups);
}

// Prepares the input of `down` for one row.
void MoeRunner::activate(const op::Moe<int>& o, int64_t row) {
  const Scratch& s = scratch_;
  if (!o.expert_widths.empty()) {
    const int64_t width = weights_.matrix(o.up).rows / o.num_experts;
    float* own = s.own_up + row * width;
    potluck::activate(kernels_, o.activation, o.gate ? s.gate + row * width : nullptr, own, own,
                      width);
    return slices_->put(row, own);
  }
  const int64_t width = o.expert_width;
  float* inner = s.up + row * width;
  potluck::activate(kernels_, o.activation, o.gate ? s.gate + row * width : nullptr, inner, inner,
                    width);
  make_inner_forms(o, row);
}

// Whole inner activations.
void MoeRunner::make_inner_forms(const op::Moe<int>& o, int64_t row) {
  const Scratch& s = scratch_;
  const int64_t width = o.expert_width, groups = width / kGroupColumns;
  const float* inner = s.up + row * width;
  const Matrix& down = weights_.matrix(o.down);
  if (is_quantized(down.format)) {
    kernels_.quantize(inner, 1, width, s.q + row * width, s.q_scales + row * groups,
                      s.q_sums + row * groups);
  } else if (takes_bf16(down)) {
    kernels_.round_bf16(inner, width, s.bf16 + row * width);
  }
}

// Done once, as soon as all weights are loaded.
void MoeRunner::unpack_biases() {
  if (has_unpacked_biases_) return;
  has_unpacked_biases_ = true;
  for (const auto& [weight, biases] : biases_) {
    const Matrix& matrix = weights_.matrix(weight);
    const auto embed = kernels_.embed[static_cast<int>(matrix.format)];
    for (int64_t expert = 0; expert < matrix.rows; ++expert) {
      embed(matrix, expert, biases + expert * matrix.columns);
    }
  }
}

// For every expert that has rows: multiplies these by its matrix of `stack`, and adds its biases if
// there are any. `x` and `out` are for all rows.
void MoeRunner::add_products(const op::Moe<int>& o, const Matrix& stack, std::optional<int> bias,
                             const float* x, float* out) {
  const Scratch& s = scratch_;
  const int64_t rows = stack.rows / o.num_experts;
  const int64_t expert_bytes = num_panels(rows) * panel_bytes(stack.format, stack.columns);
  for (int64_t e = 0; e < o.num_experts; ++e) {
    const int64_t first_row = s.first_rows[e];
    if (s.first_rows[e + 1] == first_row) continue;
    LinearArgs args{};
    args.weight = {stack.format, rows, stack.columns, stack.data + e * expert_bytes};
    args.input = rows_from({x, s.q, s.q_scales, s.q_sums, s.bf16}, first_row, stack.columns);
    args.num_tokens = s.first_rows[e + 1] - first_row;
    if (bias) args.bias = biases_.at(*bias) + e * rows;
    args.out = out + first_row * rows;
    args.out_stride = rows;
    const auto& kernels = takes_bf16(stack) ? kernels_.linear_fast : kernels_.linear;
    products_.push_back({kernels[static_cast<int>(stack.format)], args, kernels_.least_panels});
  }
}

// Computes the output of one token.
void MoeRunner::add_up(const op::Moe<int>& o, int64_t token, float* out) const {
  const int64_t columns = weights_.matrix(o.down).rows / o.num_experts;
  const int64_t num_chosen = o.num_experts_per_token, first = token * num_chosen;
  if (scratch_.experts[first] == kNoExpert) {
    std::fill_n(out, columns, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  std::fill_n(out, columns, 0.0f);
  for (int64_t i = first; i < first + num_chosen; ++i) {
    const float share = scratch_.shares[i];
    const float* made = scratch_.x + scratch_.rows[i] * columns;
    for (int64_t c = 0; c < columns; ++c) out[c] += share * made[c];
  }
}

}  // namespace potluck
