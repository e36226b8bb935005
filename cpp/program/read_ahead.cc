#include "program/read_ahead.h"

#include <sys/resource.h>

#include <variant>

namespace potluck {
namespace {

void add_weights(const op::Resolved& any, std::vector<int>& weights) {
  if (const auto* norm = std::get_if<op::RmsNorm<int>>(&any)) weights.push_back(norm->weight);
  if (const auto* head = std::get_if<op::Head<int>>(&any)) weights.push_back(head->weight);
  if (const auto* linear = std::get_if<op::Linear<int>>(&any)) {
    weights.push_back(linear->weight);
    if (linear->bias) weights.push_back(*linear->bias);
  }
}

// Blocks that this process has read from disks, and pages that it had to wait for.
int64_t num_reads() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_inblock + usage.ru_majflt;
}

}  // namespace

ReadAhead::ReadAhead(const Program& program, const WeightStore& weights)
    : weights_(weights), after_(program.ops().size()) {
  // A layer goes from one attention to the next here: programs do not say where their layers begin,
  // and as much is read between two attentions.
  std::vector<int>* layer = &first_;
  size_t layer_begin = 0;
  for (size_t i = 0; i < program.ops().size(); ++i) {
    add_weights(program.ops()[i], *layer);
    if (std::holds_alternative<op::Attention<int>>(program.ops()[i])) {
      layer = &after_[layer_begin];
      layer_begin = i + 1;
    }
  }
}

void ReadAhead::begin_step() {
  is_active_ = false;
  if (weights_.num_mapped_bytes() == 0) return;
  const int64_t now = num_reads();
  is_active_ = now != num_reads_;
  num_reads_ = now;
  if (is_active_) ask_for(first_);
}

void ReadAhead::ask_for(const std::vector<int>& weights) const {
  for (const int index : weights) {
    if (weights_.is_mapped(index)) weights_.ask_for(index);
  }
}

}  // namespace potluck
