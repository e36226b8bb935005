// Groups the ops of a program by what threads can compute without waiting for one another.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "program/op.h"

namespace potluck {

// Ops that compute a token's row only from rows of the same token.
using RowWise =
    std::variant<op::Embed<int>, op::RmsNorm<int>, op::LayerNorm<int>, op::Rope<int>,
                 op::GatedActivation<int>, op::CopyColumns<int>, op::SigmoidGate<int>, op::Scale<int>,
                 op::Multiply<int>, op::Add<int>>;

// Consecutive linear ops that multiply the same register, and write different ones: their panels
// are computed like those of one matrix.
struct Linears {
  int x;
  std::vector<op::Linear<int>> ops;
};

// Ops that are worth dividing within a row, or that need rows of several tokens or of other members
// of a group.
using Wide =
    std::variant<std::monostate, Linears, op::Embed<int>, op::AllGather<int>, op::HeadLinear<int>, op::Attention<int>,
                 op::CausalConv<int>, op::GatedDelta<int>, op::StateScan<int>, op::Moe<int>,
                 op::Head<int>>;

// Consecutive ops that run as at most two parallel loops.
//
// The row-wise ones run one after another on one row, then on the next: rows stay in the cache, and
// a single token wakes no other thread. The wide op's inputs for each row (quantized activations,
// keys and values that are appended to a cache, factors of a recurrence, selected experts) are
// prepared along with them.
struct Phase {
  size_t first_op;  // of the program
  std::vector<RowWise> row_wise;
  Wide wide;  // std::monostate only at the end of a program
};

// Phases in order, which together contain every op once.
std::vector<Phase> schedule(const std::vector<op::Resolved>& ops);

}  // namespace potluck
