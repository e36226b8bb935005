// Tracks the sequences for which only the largest logit matters.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "program/batch.h"
#include "program/sampler.h"

namespace potluck {

// All members of a group decide alike, from the data with which a sequence is opened; this includes
// whether it has a grammar, whose masks only the sampling member receives.
class GreedyRows {
 public:
  void open(const std::vector<Opening>& openings) {
    for (const Opening& opening : openings) {
      const SamplingParams& params = opening.sampling;
      const bool is_greedy = params.temperature == 0.0f && !params.logprobs &&
                             !has_penalties(params) && params.logit_bias.empty() &&
                             !opening.has_grammar;
      if (is_greedy) greedy_.insert(opening.sequence_id);
    }
  }
  void close(int64_t sequence_id) { greedy_.erase(sequence_id); }

  // For each row, whether only the token with the largest logit is requested.
  std::vector<bool> of(const WantedRow* rows, int64_t num_rows) const {
    std::vector<bool> all;
    for (int64_t i = 0; i < num_rows; ++i) {
      all.push_back(!rows[i].known && has(rows[i].sequence_id));
    }
    return all;
  }
  bool has(int64_t sequence_id) const { return greedy_.count(sequence_id) != 0; }

 private:
  std::unordered_set<int64_t> greedy_;
};

}  // namespace potluck
