// Ops of the executor that keep a state of the whole sequence.
#include "program/executor.h"

#include <algorithm>
#include <limits>

#include "program/op_work.h"

namespace potluck {
namespace {

// Exponentials, logarithms and quotients in a recurrence's factors, per head.
constexpr int64_t kFactorsWork = 4 * kExpWork;

// Units are strips of heads. Units that kernels process together are not separated.
StateShape strip_shape(int64_t num_heads, int64_t rows, int64_t columns, int64_t work) {
  constexpr int64_t kMostAtOnce = 4;
  const int64_t strips = num_state_strips(columns);
  return {num_heads * strips, strips % kMostAtOnce == 0 ? kMostAtOnce : strips, work * rows * 16};
}

}  // namespace

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
  for (const auto& [known, division] : part_->state_divisions) {
    if (known == shape) return division;
  }
  part_->state_divisions.emplace_back(
      shape, divide_states(batch.slices(), shape, attention_limits_.num_threads));
  return part_->state_divisions.back().second;
}

void Executor::run_op(const op::CausalConv<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  // 16 columns each; adjacent ones are read contiguously.
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

// For all tokens of the batch.
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

// For all tokens of the batch, [token][head].
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

}  // namespace potluck
