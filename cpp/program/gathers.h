// For every AllGather op of a program, determines the readers of the gathered rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"

namespace potluck {

struct Gather {
  int out;                       // the register
  std::vector<int64_t> widths;
  std::vector<int> matrices;     // by which it is multiplied
  bool is_read_otherwise;        // by ops other than products, or by the next stage
};

class Gathers {
 public:
  explicit Gathers(const Program& program);

  // Returns the gather of the AllGather op at `op_index`, or for a Linear op, the gather whose
  // `out` it multiplies. Otherwise null.
  const Gather* at(size_t op_index) const {
    const int index = of_op_[op_index];
    return index == kNone ? nullptr : &gathers_[static_cast<size_t>(index)];
  }

 private:
  static constexpr int kNone = -1;

  std::vector<Gather> gathers_;
  std::vector<int> of_op_;
};

}  // namespace potluck
