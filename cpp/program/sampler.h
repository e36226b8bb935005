// Chooses the next token of sequences from their logits, as potluck.types.step specifies it.
//
// The choice depends on the logits, the parameters, the sequence's own tokens and the position
// alone; neither on the other sequences nor on the number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "program/batch.h"
#include "program/candidates.h"
#include "program/cut.h"
#include "program/memory.h"
#include "program/thread_pool.h"

namespace potluck {

// As potluck.types.step.SamplingParams.
struct SamplingParams {
  float temperature;
  std::optional<int64_t> top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  std::vector<std::pair<int64_t, float>> logit_bias;
  uint64_t seed;
  bool logprobs;
  int64_t top_logprobs;
};

struct Opening {
  int64_t sequence_id;
  SamplingParams sampling;
  std::vector<int64_t> prompt_tokens;
  std::vector<int64_t> output_tokens;
};

struct TokenLogprob {
  int64_t token;
  float logprob;
};

struct SampledToken {
  int64_t sequence_id;
  int64_t position;
  int64_t token;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;  // most likely first; lower ids first among equals
  bool is_known;                  // it was scored, and not chosen
};

// The tokens that may follow a sequence in one step: bit `t % 32` of word `t / 32` is 1 where token
// `t` may. Bits beyond the vocabulary have no meaning.
struct TokenMask {
  int64_t sequence_id;
  const uint32_t* words;  // [num_words(vocab_size)], the caller's
  int64_t count;

  static int64_t num_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }
};

class Sampler {
 public:
  // Throws OutOfMemoryError.
  Sampler(int64_t vocab_size, const Kernels& kernels, int num_threads);

  static uint64_t scratch_bytes(int64_t vocab_size, int num_threads);

  // Throws Error when a sequence is open already, or a parameter or token is out of range.
  void check_openings(const std::vector<Opening>& openings) const;
  // After check_openings.
  void open(const std::vector<Opening>& openings);
  // A sequence that is not open (cancelled before its first token) is none of our concern.
  void close(int64_t sequence_id) { sequences_.erase(sequence_id); }
  bool is_open(int64_t sequence_id) const { return sequences_.count(sequence_id) > 0; }

  // Throws Error for a mask that has not the vocabulary's size, that allows no token, or whose
  // sequence has another one.
  void check_masks(const std::vector<TokenMask>& masks) const;
  // One token per entry of [first, last); `logits` has a row of vocab_size for each, in the same
  // order. A known token is not chosen, and has its log-probability always; masks, which have
  // passed check_masks, do not concern it. Changes no sequence's history: see record. Throws Error
  // for a sequence that is not open, and NonFiniteError for logits that are not finite.
  std::vector<SampledToken> sample(const WantedRow* first, const WantedRow* last,
                                   const float* logits, const std::vector<TokenMask>& masks,
                                   ThreadPool::Session& session);

  // Adds what was sampled, and not what was scored, to the histories that penalties count.
  void record(const std::vector<SampledToken>& sampled);

 private:
  struct Sequence {
    SamplingParams params;
    bool keeps_history;
    // How often each token of prompt and output stands in the output. Empty without penalties.
    std::unordered_map<int64_t, int64_t> output_counts;
  };
  // What one row is computed in at a time.
  struct Scratch {
    float* adjusted;
    float* weights;
    float* maxima;  // of `adjusted`
    double* sums;   // of blocks of `weights`
    Candidates::Scratch candidates;
    CutSearch::Scratch cut;
  };

  // How a row is drawn from; `session` is null where other rows are computed at the same time.
  struct Row {
    const Sequence& sequence;
    const uint32_t* mask;  // null where every token may follow
    const Scratch& scratch;
    ThreadPool::Session* session;
  };

  Scratch scratch(int worker) const;
  void sample_one(const BlockedLogits& logits, const Row& row, SampledToken& out) const;
  // Penalties and biases, after which logits are still finite, and minus infinity for every token
  // that the mask does not allow.
  BlockedLogits adjust(const BlockedLogits& logits, const Row& row) const;
  int64_t draw(const BlockedLogits& adjusted, const Row& row, int64_t position) const;
  // Where top_k and top_p leave few tokens; none where they do not, or it is not known soon.
  std::optional<int64_t> draw_from_few(const BlockedLogits& adjusted, const Row& row, double total,
                                       double number) const;
  int64_t draw_from_all(const BlockedLogits& adjusted, const Row& row, double total,
                        double number) const;
  // Of the weights that are kept, by blocks; returns the sum of all.
  double sum_kept(const BlockedLogits& adjusted, const Row& row, const Cut& cut,
                  float least_weight) const;
  void add_logprobs(const BlockedLogits& blocked, const Row& row, SampledToken& out) const;

  const int64_t vocab_size_;
  const Kernels& kernels_;
  Buffer scratch_;
  std::unordered_map<int64_t, Sequence> sequences_;
};

}  // namespace potluck
