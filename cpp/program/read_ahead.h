// Has mapped weights read from their file before they are needed.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"
#include "program/weights.h"

namespace potluck {

// While one layer computes, the weights of the next are asked for: otherwise every page that is not
// in memory stops a thread until the disk has it. An embedding is left out, as few of its rows are
// read. In a step after one that read nothing everything is there, and nothing is asked for.
class ReadAhead {
 public:
  // The references must outlive it; weights are looked at when a step begins.
  ReadAhead(const Program& program, const WeightStore& weights);

  void begin_step();
  // `op_index` is that of an op of the program, ascending from step to step.
  void before_op(size_t op_index) {
    if (is_active_ && !after_[op_index].empty()) ask_for(after_[op_index]);
  }

 private:
  void ask_for(const std::vector<int>& weights) const;

  const WeightStore& weights_;
  std::vector<int> first_;               // weights of the first layer
  std::vector<std::vector<int>> after_;  // at a layer's first op: those of the layer after it
  int64_t num_reads_ = -1;               // of this process, when the last step began
  bool is_active_ = false;
};

}  // namespace potluck
