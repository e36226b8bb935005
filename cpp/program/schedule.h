// Groups the ops of a program by what threads can do without waiting for one another.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "program/op.h"

namespace potluck {

// Ops whose row of a token depends on rows of the same token alone.
using RowWise =
    std::variant<op::Embed<int>, op::RmsNorm<int>, op::LayerNorm<int>, op::Rope<int>,
                 op::GatedActivation<int>, op::CopyColumns<int>, op::SigmoidGate<int>, op::Scale<int>,
                 op::Multiply<int>, op::Add<int>>;

// Consecutive linear ops that multiply one register, and write different ones: their panels are
// computed as those of one matrix.
struct Linears {
  int x;
  std::vector<op::Linear<int>> ops;
};

// Ops that are worth dividing within a row, or need rows of several tokens.
using Wide =
    std::variant<std::monostate, Linears, op::HeadLinear<int>, op::Attention<int>,
                 op::CausalConv<int>, op::GatedDelta<int>, op::StateScan<int>, op::Moe<int>,
                 op::Head<int>>;

// Consecutive ops that run as two parallel loops at most.
//
// The row-wise ones run one after another on one row, then on the next: rows stay in the cache, and
// a single token wakes nobody. What the wide one takes of each row (quantized activations, keys and
// values that are appended to a cache, factors of a recurrence, a choice of experts) is made along
// with them.
struct Phase {
  size_t first_op;  // of the program
  std::vector<RowWise> row_wise;
  Wide wide;  // std::monostate at the end of a program only
};

// Phases in order, which together have every op once.
std::vector<Phase> schedule(const std::vector<op::Resolved>& ops);

}  // namespace potluck
