// Selects the next token of sequences from their logits, as specified by potluck.types.step.
//
// The choice depends only on the logits, the parameters, the sequence's own tokens and the
// position; neither on the other sequences nor on the number of threads.
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

// Like potluck.types.step.SamplingParams.
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
  bool has_grammar = false;
};

// Whether a token's logit depends on how often the token has occurred.
inline bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
         params.presence_penalty != 0.0f;
}

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
  bool is_known;                  // it was scored, not sampled
};

// The tokens that may follow a sequence in one step: bit `t % 32` of word `t / 32` is 1 if token
// `t` is allowed. Bits beyond the vocabulary have no meaning. There is a row for each sampled row
// of the sequence (WantedRow::mask_row).
struct TokenMask {
  int64_t sequence_id;
  const uint32_t* words;  // [rows][count], owned by the caller
  int64_t rows;
  int64_t count;  // num_words(vocab_size)

  static int64_t num_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }
};

class Sampler {
 public:
  // Throws OutOfMemoryError.
  Sampler(int64_t vocab_size, const Kernels& kernels, int num_threads);

  static uint64_t scratch_bytes(int64_t vocab_size, int num_threads);

  // Throws Error if a sequence is already open, or a parameter or token is out of range.
  void check_openings(const std::vector<Opening>& openings) const;
  // Call check_openings first.
  void open(const std::vector<Opening>& openings);
  // Ignores a sequence that is not open (cancelled before its first token).
  void close(int64_t sequence_id) { sequences_.erase(sequence_id); }
  bool is_open(int64_t sequence_id) const { return sequences_.count(sequence_id) > 0; }

  // Throws Error for masks that do not have the vocabulary's size, that allow no token, or whose
  // sequence has others.
  void check_masks(const std::vector<TokenMask>& masks) const;

  // The additions of a step to the histories of sequences, which are undone at its end unless they
  // are kept.
  class Recording {
   public:
    explicit Recording(Sampler& sampler) : sampler_(sampler) { sampler_.recorded_.clear(); }
    ~Recording() { sampler_.take_back(); }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    void keep() { sampler_.recorded_.clear(); }

   private:
    Sampler& sampler_;
  };

  // Whether the row has a result: always, unless its own token is a draft that differs from the
  // token last sampled for the sequence at its position, or none was sampled there.
  bool is_followed(const WantedRow& wanted) const;

  // One token for each entry of [first, last) that has a result, in order; `logits` has a row of
  // vocab_size for each entry, in the same order, and rows of one sequence are contiguous. Sampled
  // tokens are recorded: they decide whether later drafts are right. A known token is not sampled,
  // and always has its log-probability; masks, which have passed check_masks and have all required
  // rows, do not apply to it. A Recording must exist. Throws Error for a sequence that is not open,
  // and NonFiniteError for logits that are not finite.
  std::vector<SampledToken> sample(const WantedRow* first, const WantedRow* last,
                                   const float* logits, const std::vector<TokenMask>& masks,
                                   ThreadPool::Session& session);

 private:
  struct LastToken {
    int64_t position;
    int64_t token;
  };
  struct Sequence {
    SamplingParams params;
    bool keeps_history;
    std::optional<LastToken> last;  // of the output; none if it is empty
    // How often each token of prompt and output occurs in the output. Empty without penalties.
    std::unordered_map<int64_t, int64_t> output_counts;
  };
  // The additions of `record`, and the previous last token.
  struct Recorded {
    int64_t sequence_id;
    int64_t token;
    std::optional<LastToken> last_before;
    bool is_new;  // in output_counts
  };
  // Buffers for one row at a time.
  struct Scratch {
    float* adjusted;
    float* weights;
    float* maxima;  // of `adjusted`
    double* sums;   // of blocks of `weights`
    Candidates::Scratch candidates;
    CutSearch::Scratch cut;
  };

  // The distribution of a row; `session` is null if other rows are computed at the same time.
  struct Row {
    const Sequence& sequence;
    const uint32_t* mask;  // null if every token is allowed
    const Scratch& scratch;
    ThreadPool::Session* session;
  };

  // Adds a sampled token, but not a scored one, to the history of its sequence.
  void record(const SampledToken& sampled);
  void take_back();
  // Rows of `all`, whose results are filled in.
  void sample_rows(const std::vector<int64_t>& now, const std::vector<BlockedLogits>& all,
                   const std::vector<const uint32_t*>& masks, std::vector<SampledToken>& sampled,
                   ThreadPool::Session& session) const;
  Scratch scratch(int worker) const;
  void sample_one(const BlockedLogits& logits, const Row& row, SampledToken& out) const;
  // Applies penalties and biases, after which logits are still finite, except for minus infinity
  // for every token that the mask does not allow.
  BlockedLogits adjust(const BlockedLogits& logits, const Row& row) const;
  int64_t draw(const BlockedLogits& adjusted, const Row& row, int64_t position) const;
  // The few tokens that top_k and top_p keep; none if there are many, or if that cannot be
  // determined quickly.
  std::optional<int64_t> draw_from_few(const BlockedLogits& adjusted, const Row& row, double total,
                                       double number) const;
  int64_t draw_from_all(const BlockedLogits& adjusted, const Row& row, double total,
                        double number) const;
  // The weights that are kept, by blocks; returns their sum.
  double sum_kept(const BlockedLogits& adjusted, const Row& row, const Cut& cut,
                  float least_weight) const;
  void add_logprobs(const BlockedLogits& blocked, const Row& row, SampledToken& out) const;

  const int64_t vocab_size_;
  const Kernels& kernels_;
  Buffer scratch_;
  std::unordered_map<int64_t, Sequence> sequences_;
  std::vector<Recorded> recorded_;
};

}  // namespace potluck
