// Ops of the executor that compute a token's row only from rows of the same token.
#include "program/executor.h"

#include <algorithm>

#include "program/gate_kernel.h"
#include "program/op_work.h"

namespace potluck {

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

}  // namespace potluck
