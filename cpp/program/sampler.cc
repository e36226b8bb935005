#include "program/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <unordered_set>

#include "program/error.h"
#include "program/philox.h"

namespace potluck {
namespace {

// Far below where exp becomes zero in float32 (-104), and far above where arithmetic overflows.
constexpr float kLeastScaledLogit = -1e4f;

[[noreturn]] void fail(int64_t sequence_id, const std::string& message) {
  throw Error("sequence " + std::to_string(sequence_id) + ": " + message);
}

bool within(float value, float low, float high) { return value >= low && value <= high; }

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
         params.presence_penalty != 0.0f;
}

// In float64 the order of summation does not matter for any draw (which has 24 bits), so that the
// sum over all need not wait for a sort of all; in float32 the error over a flat distribution of a
// large vocabulary would reach 1e-3. Eight sums at a time, as one addition waits for the last.
double sum_of(const float* x, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += static_cast<double>(x[i + lane]);
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(x[i]);
  return std::accumulate(sums, sums + 8, 0.0);
}

}  // namespace

Sampler::Sampler(int64_t vocab_size, const Kernels& kernels, int num_threads)
    : vocab_size_(vocab_size),
      kernels_(kernels),
      scratch_(scratch_bytes(vocab_size, num_threads), Pages::Normal, "sampling") {}

uint64_t Sampler::scratch_bytes(int64_t vocab_size, int num_threads) {
  const int64_t per_token = 3 * sizeof(float) + sizeof(int32_t);
  const int64_t per_block = 2 * sizeof(float);
  return static_cast<uint64_t>(vocab_size * per_token +
                               BlockedLogits::num_blocks(vocab_size) * per_block) *
         static_cast<uint64_t>(num_threads);
}

Sampler::Scratch Sampler::scratch(int worker) const {
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
  float* floats =
      reinterpret_cast<float*>(scratch_.data()) + (4 * vocab_size_ + 2 * blocks) * worker;
  float* maxima = floats + 3 * vocab_size_;
  auto* order = reinterpret_cast<int32_t*>(maxima + 2 * blocks);
  return {floats, floats + vocab_size_, floats + 2 * vocab_size_, maxima,
          {order, maxima + blocks}};
}

void Sampler::check_openings(const std::vector<Opening>& openings) const {
  std::unordered_set<int64_t> ids;
  for (const Opening& opening : openings) {
    const int64_t id = opening.sequence_id;
    const SamplingParams& p = opening.sampling;
    if (is_open(id) || !ids.insert(id).second) fail(id, "it is open for sampling already");
    if (!within(p.temperature, 0.0f, FLT_MAX)) fail(id, "temperature must be at least 0");
    if (p.top_k && *p.top_k < 1) fail(id, "top_k must be at least 1");
    if (!within(p.top_p, 0.0f, 1.0f)) fail(id, "top_p must be from 0 to 1");
    if (!within(p.min_p, 0.0f, 1.0f)) fail(id, "min_p must be from 0 to 1");
    if (!within(p.repetition_penalty, FLT_MIN, FLT_MAX)) {
      fail(id, "repetition_penalty must be greater than 0");
    }
    if (!std::isfinite(p.frequency_penalty)) fail(id, "frequency_penalty must be finite");
    if (!std::isfinite(p.presence_penalty)) fail(id, "presence_penalty must be finite");
    const auto check_token = [&](int64_t token, const char* where) {
      if (token < 0 || token >= vocab_size_) {
        fail(id, "token " + std::to_string(token) + " of " + where +
                     " is not within the vocabulary of " + std::to_string(vocab_size_));
      }
    };
    for (const auto& [token, bias] : p.logit_bias) {
      check_token(token, "logit_bias");
      if (!std::isfinite(bias)) fail(id, "logit_bias must be finite");
    }
    for (const int64_t token : opening.prompt_tokens) check_token(token, "the prompt");
    for (const int64_t token : opening.output_tokens) check_token(token, "the output");
    if (p.top_logprobs < 0 || p.top_logprobs > vocab_size_) {
      fail(id, "top_logprobs must be from 0 to the size of the vocabulary");
    }
  }
}

void Sampler::open(const std::vector<Opening>& openings) {
  for (const Opening& opening : openings) {
    Sequence sequence{opening.sampling, has_penalties(opening.sampling), {}};
    if (sequence.keeps_history) {
      auto& counts = sequence.output_counts;
      for (const int64_t token : opening.prompt_tokens) counts.try_emplace(token, 0);
      for (const int64_t token : opening.output_tokens) ++counts[token];
    }
    sequences_.insert_or_assign(opening.sequence_id, std::move(sequence));
  }
}

void Sampler::check_masks(const std::vector<TokenMask>& masks) const {
  const int64_t num_words = TokenMask::num_words(vocab_size_);
  const uint32_t last_bits = vocab_size_ % 32 == 0 ? ~0u : (1u << (vocab_size_ % 32)) - 1;
  std::unordered_set<int64_t> ids;
  for (const TokenMask& mask : masks) {
    if (!ids.insert(mask.sequence_id).second) fail(mask.sequence_id, "it has two masks");
    if (mask.count != num_words) {
      fail(mask.sequence_id, "its mask has " + std::to_string(mask.count) + " words, and " +
                                 std::to_string(num_words) + " are needed");
    }
    const bool allows_any =
        std::any_of(mask.words, mask.words + num_words - 1, [](uint32_t x) { return x != 0; }) ||
        (mask.words[num_words - 1] & last_bits) != 0;
    if (!allows_any) fail(mask.sequence_id, "its mask allows no token");
  }
}

std::vector<SampledToken> Sampler::sample(const WantedRow* first, const WantedRow* last,
                                          const float* logits,
                                          const std::vector<TokenMask>& masks,
                                          ThreadPool::Session& session) {
  std::vector<const Sequence*> sequences;
  std::vector<const uint32_t*> row_masks;
  std::vector<SampledToken> sampled;
  for (const WantedRow* wanted = first; wanted != last; ++wanted) {
    const auto found = sequences_.find(wanted->sequence_id);
    if (found == sequences_.end()) fail(wanted->sequence_id, "it is not open for sampling");
    sequences.push_back(&found->second);
    const bool is_known = wanted->known.has_value();
    const auto mask = std::find_if(masks.begin(), masks.end(), [&](const TokenMask& each) {
      return each.sequence_id == wanted->sequence_id;
    });
    row_masks.push_back(is_known || mask == masks.end() ? nullptr : mask->words);
    sampled.push_back({wanted->sequence_id, wanted->next_position, wanted->known.value_or(-1),
                       std::nullopt, {}, is_known});
    // Here and not in the parallel loop, which must not throw.
    const SamplingParams& params = found->second.params;
    if (params.logprobs || is_known) {
      sampled.back().top.resize(static_cast<size_t>(params.top_logprobs));
    }
  }
  const auto num_rows = static_cast<int64_t>(sampled.size());
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
  std::vector<float> maxima(static_cast<size_t>(num_rows * blocks));
  std::vector<BlockedLogits> rows;
  for (int64_t i = 0; i < num_rows; ++i) {
    rows.push_back({logits + i * vocab_size_, vocab_size_, maxima.data() + i * blocks});
  }
  parallel_ranges(session, num_rows * blocks, 1, BlockedLogits::kBlock,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t at = begin; at < end; ++at) {
                      const int64_t row = at / blocks;
                      const int64_t block = at % blocks;
                      find_maxima(rows[row].logits, vocab_size_, block, block + 1,
                                  maxima.data() + row * blocks);
                    }
                  });
  for (int64_t i = 0; i < num_rows; ++i) {
    if (!rows[i].all_finite()) {
      throw NonFiniteError("sequence " + std::to_string(sampled[i].sequence_id) +
                           ": its logits are not finite (NaN or infinity)");
    }
  }
  // Without truncation every logit is looked at about five times: scale, exp, sum ...
  parallel_ranges(session, num_rows, 1, 5 * vocab_size_,
                  [&](int64_t begin, int64_t end, int worker) {
                    for (int64_t i = begin; i < end; ++i) {
                      sample_one(rows[i], *sequences[i], row_masks[i], scratch(worker), sampled[i]);
                    }
                  });
  return sampled;
}

void Sampler::record(const std::vector<SampledToken>& sampled) {
  for (const SampledToken& token : sampled) {
    const auto found = sequences_.find(token.sequence_id);
    if (!token.is_known && found != sequences_.end() && found->second.keeps_history) {
      ++found->second.output_counts[token.token];
    }
  }
}

void Sampler::sample_one(const BlockedLogits& logits, const Sequence& sequence,
                         const uint32_t* mask, const Scratch& scratch, SampledToken& out) const {
  const SamplingParams& params = sequence.params;
  if (out.is_known) {
    add_logprobs(logits, sequence, scratch, out);
    return;
  }
  BlockedLogits adjusted = logits;
  if (sequence.keeps_history || !params.logit_bias.empty() || mask != nullptr) {
    adjust(logits.logits, sequence, mask, scratch.adjusted);
    find_masked_maxima(scratch.adjusted, vocab_size_, 0, BlockedLogits::num_blocks(vocab_size_),
                       scratch.maxima);
    adjusted = {scratch.adjusted, vocab_size_, scratch.maxima};
  }
  out.token = params.temperature == 0.0f ? adjusted.argmax()
                                         : draw(adjusted, sequence, out.position, scratch);
  if (params.logprobs) add_logprobs(logits, sequence, scratch, out);
}

void Sampler::adjust(const float* logits, const Sequence& sequence, const uint32_t* mask,
                     float* adjusted) const {
  const SamplingParams& params = sequence.params;
  std::copy_n(logits, vocab_size_, adjusted);
  // Whatever the parameters, logits stay finite.
  const auto bounded = [](float x) { return std::clamp(x, -FLT_MAX, FLT_MAX); };
  for (const auto& [token, count] : sequence.output_counts) {
    float& logit = adjusted[token];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count > 0) {
      logit -= params.frequency_penalty * static_cast<float>(count);
      logit -= params.presence_penalty;
    }
    logit = bounded(logit);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    adjusted[token] = bounded(adjusted[token] + bias);
  }
  if (mask == nullptr) return;
  for (int64_t token = 0; token < vocab_size_; ++token) {
    if ((mask[token / 32] >> (token % 32) & 1) == 0) {
      adjusted[token] = -std::numeric_limits<float>::infinity();
    }
  }
}

int64_t Sampler::draw(const BlockedLogits& adjusted, const Sequence& sequence, int64_t position,
                      const Scratch& scratch) const {
  const SamplingParams& params = sequence.params;
  Candidates candidates(adjusted, scratch.candidates);
  // Relative to the largest before the division, so that a tiny temperature cannot overflow.
  const float largest = adjusted.logits[adjusted.argmax()];
  const auto scaled = [&](int64_t token) {
    return std::max((adjusted.logits[token] - largest) / params.temperature, kLeastScaledLogit);
  };
  // Weights of the candidates that top_k leaves, by rank; or of all tokens, where it leaves all.
  const bool is_cut = params.top_k && *params.top_k < vocab_size_;
  const int64_t num_weights = is_cut ? *params.top_k : vocab_size_;
  if (is_cut) candidates.sort_prefix(num_weights);
  for (int64_t i = 0; i < num_weights; ++i) {
    scratch.scaled[i] = scaled(is_cut ? candidates[i] : i);
  }
  kernels_.exp_sum(scratch.scaled, num_weights, 0.0f, scratch.weights);
  const auto weight = [&](int64_t rank) {
    return static_cast<double>(scratch.weights[is_cut ? rank : candidates[rank]]);
  };

  // How many candidates are kept, and the sum of their weights. Each rule keeps a prefix of the
  // sorted order, and is applied to what the one before has kept.
  int64_t kept = num_weights;
  double total = sum_of(scratch.weights, num_weights);
  if (params.top_p < 1.0f || params.min_p > 0.0f) {
    const double enough = params.top_p < 1.0f ? params.top_p * total : DBL_MAX;
    const double least = params.min_p * weight(0);
    double cumulative = weight(0);
    int64_t rank = 1;
    while (rank < kept && cumulative < enough && weight(rank) >= least) {
      cumulative += weight(rank++);
    }
    kept = rank;
    total = cumulative;
  }

  const double target = uniform_draw(params.seed, static_cast<uint64_t>(position)) * total;
  double cumulative = 0.0;
  for (int64_t rank = 0; rank < kept; ++rank) {
    cumulative += weight(rank);
    if (cumulative > target) return candidates[rank];
  }
  // Not reached: a draw is at most 1 - 2^-24, and the two sums differ by far less.
  return candidates[kept - 1];
}

void Sampler::add_logprobs(const BlockedLogits& blocked, const Sequence& sequence,
                           const Scratch& scratch, SampledToken& out) const {
  const float* logits = blocked.logits;
  const float largest = logits[blocked.argmax()];
  const float sum = kernels_.exp_sum(logits, vocab_size_, largest, scratch.weights);
  // In double and rounded once: the C library's logf may differ from machine to machine.
  const float log_sum = static_cast<float>(std::log(static_cast<double>(sum)));
  const auto logprob = [&](int64_t token) { return (logits[token] - largest) - log_sum; };
  out.logprob = logprob(out.token);
  Candidates candidates(blocked, scratch.candidates);
  candidates.sort_prefix(sequence.params.top_logprobs);
  for (size_t rank = 0; rank < out.top.size(); ++rank) {
    const int32_t token = candidates[static_cast<int64_t>(rank)];
    out.top[rank] = {token, logprob(token)};
  }
}

}  // namespace potluck
