// Finds where to cut a vocabulary in sampling order (larger logit first, lower id first among
// equals): after a number of tokens, or after a sum of weights. Does not sort it.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"
#include "program/candidates.h"
#include "program/thread_pool.h"

namespace potluck {

// Keeps a token if its logit is greater than `least`, or equal and its id at most `last_tie`.
struct Cut {
  float least;
  int64_t last_tie;

  static Cut nothing();
  bool keeps(float logit, int64_t token) const {
    return logit > least || (logit == least && token <= last_tie);
  }
  bool is_narrower_than(const Cut& other) const {
    return least > other.least || (least == other.least && last_tie < other.last_tie);
  }
};

// Processes the blocks of one row, on the threads of `session`, or on this one if it is null.
template <typename F>
void for_blocks(ThreadPool::Session* session, int64_t num_blocks, const F& function) {
  // Scanning a block takes about 10 operations per logit.
  constexpr int64_t kBlockWork = 10 * kSamplingBlock;
  if (session == nullptr) return function(int64_t{0}, num_blocks);
  parallel_ranges(*session, num_blocks, 1, kBlockWork,
                  [&](int64_t begin, int64_t end, int) { function(begin, end); });
}

enum class Measure { Tokens, Weight };

class CutSearch {
 public:
  struct Scratch {
    int32_t* order;       // [count, in whole blocks]
    double* above;        // [num_blocks(count)]
    int32_t* num_above;   // likewise
    int32_t* num_within;  // likewise
  };

  // `weights` are the result of draw_weights for the logits.
  CutSearch(const Kernels& kernels, const BlockedLogits& blocked, const float* weights,
            const Scratch& scratch, ThreadPool::Session* session);

  // The shortest prefix whose weight is at least `limit`, which is greater than zero and at most
  // `total`, the weight of all. The order of additions, and so rounding, depends on the logits
  // alone.
  Cut find(Measure measure, double limit, double total);

 private:
  struct Range {
    float low;
    float high;
  };
  // The measure of everything above a range, and the number of tokens within, which are in `order`.
  struct Split {
    double above;
    int64_t num_within;
  };
  // Equal parts of a range of logits, from the top down; the last one includes everything below.
  struct Bins {
    float top;
    double width;    // 0 if all are equal
    double per_unit;  // 1 / width

    int bin_of(float logit) const;
    float edge(int bin) const { return static_cast<float>(top - bin * width); }
  };

  Range guess(Measure measure, double part, int64_t generosity) const;
  Split split(Measure measure, const Range& range);
  Bins bins_of(Measure measure, const int32_t* tokens, int64_t count) const;
  double measured(Measure measure, int64_t count) const;
  Cut find_among(Measure measure, int64_t count, double limit);
  double amount(Measure measure, int64_t token) const {
    return measure == Measure::Tokens ? 1.0 : static_cast<double>(weights_[token]);
  }

  const Kernels& kernels_;
  const BlockedLogits blocked_;
  const float* weights_;
  const Scratch scratch_;
  ThreadPool::Session* session_;
};

}  // namespace potluck
