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

[[noreturn]] void fail(int64_t sequence_id, const std::string& message) {
  throw Error("sequence " + std::to_string(sequence_id) + ": " + message);
}

bool within(float value, float low, float high) { return value >= low && value <= high; }

// Maximum number of tokens that are sorted to find those that top_k and top_p keep.
constexpr int64_t kFew = 512;
// The initial number. A confident model puts almost all its probability there.
constexpr int64_t kFirstFew = 64;

}  // namespace

Sampler::Sampler(int64_t vocab_size, const Kernels& kernels, int num_threads)
    : vocab_size_(vocab_size),
      kernels_(kernels),
      scratch_(scratch_bytes(vocab_size, num_threads), Pages::Normal, "sampling") {}

uint64_t Sampler::scratch_bytes(int64_t vocab_size, int num_threads) {
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size);
  const int64_t per_block = 2 * sizeof(double) + 2 * sizeof(float) + 2 * sizeof(int32_t) +
                            kSamplingBlock * (2 * sizeof(float) + sizeof(int32_t));
  return static_cast<uint64_t>(blocks * per_block) * static_cast<uint64_t>(num_threads);
}

Sampler::Scratch Sampler::scratch(int worker) const {
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
  uint8_t* next = scratch_.data() + scratch_bytes(vocab_size_, 1) * static_cast<uint64_t>(worker);
  const auto take = [&](auto* type, int64_t count) {
    auto* taken = reinterpret_cast<decltype(type)>(next);
    next += static_cast<uint64_t>(count) * sizeof *type;
    return taken;
  };
  double* sums = take(static_cast<double*>(nullptr), blocks);
  double* above = take(static_cast<double*>(nullptr), blocks);
  float* adjusted = take(static_cast<float*>(nullptr), blocks * kSamplingBlock);
  float* weights = take(static_cast<float*>(nullptr), blocks * kSamplingBlock);
  float* maxima = take(static_cast<float*>(nullptr), blocks);
  float* sorted_maxima = take(static_cast<float*>(nullptr), blocks);
  int32_t* order = take(static_cast<int32_t*>(nullptr), blocks * kSamplingBlock);
  int32_t* num_above = take(static_cast<int32_t*>(nullptr), blocks);
  int32_t* num_within = take(static_cast<int32_t*>(nullptr), blocks);
  return {adjusted, weights, maxima, sums, {order, sorted_maxima},
          {order, above, num_above, num_within}};
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
    Sequence sequence{opening.sampling, has_penalties(opening.sampling), std::nullopt, {}};
    if (!opening.output_tokens.empty()) {
      const size_t length = opening.prompt_tokens.size() + opening.output_tokens.size();
      sequence.last = {static_cast<int64_t>(length) - 1, opening.output_tokens.back()};
    }
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
    for (int64_t row = 0; row < mask.rows; ++row) {
      const uint32_t* words = mask.words + row * num_words;
      const bool allows_any =
          std::any_of(words, words + num_words - 1, [](uint32_t x) { return x != 0; }) ||
          (words[num_words - 1] & last_bits) != 0;
      if (!allows_any) fail(mask.sequence_id, "its mask allows no token");
    }
  }
}

bool Sampler::is_followed(const WantedRow& wanted) const {
  if (!wanted.draft) return true;
  const auto found = sequences_.find(wanted.sequence_id);
  if (found == sequences_.end() || !found->second.last) return false;
  const LastToken& last = *found->second.last;
  return last.position == wanted.next_position - 1 && last.token == *wanted.draft;
}

std::vector<SampledToken> Sampler::sample(const WantedRow* first, const WantedRow* last,
                                          const float* logits,
                                          const std::vector<TokenMask>& masks,
                                          ThreadPool::Session& session) {
  std::vector<const uint32_t*> row_masks;
  std::vector<SampledToken> sampled;
  for (const WantedRow* wanted = first; wanted != last; ++wanted) {
    const auto found = sequences_.find(wanted->sequence_id);
    if (found == sequences_.end()) fail(wanted->sequence_id, "it is not open for sampling");
    const bool is_known = wanted->known.has_value();
    const auto mask = std::find_if(masks.begin(), masks.end(), [&](const TokenMask& each) {
      return each.sequence_id == wanted->sequence_id;
    });
    row_masks.push_back(is_known || mask == masks.end()
                            ? nullptr
                            : mask->words + wanted->mask_row * mask->count);
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
  // In rounds, each with the rows that do not depend on rows still to be sampled: a draft waits for
  // the row before it. Rows without results are in no round.
  std::vector<int64_t> waiting;  // the next row of each sequence, or a later one
  std::vector<int64_t> now;
  std::vector<bool> is_sampled(static_cast<size_t>(num_rows), false);
  const auto begins = [&](int64_t i) {
    return i == 0 || first[i].sequence_id != first[i - 1].sequence_id;
  };
  for (int64_t i = 0; i < num_rows; ++i) {
    if (begins(i)) waiting.push_back(i);
  }
  for (;;) {
    now.clear();
    size_t num_waiting = 0;
    for (int64_t i : waiting) {
      bool is_taken = false;  // a row on which the next one may depend
      while (i < num_rows && !(is_taken && (begins(i) || first[i].draft))) {
        if (!is_followed(first[i])) break;
        now.push_back(i++);
        is_taken = true;
      }
      if (is_taken && i < num_rows && !begins(i)) waiting[num_waiting++] = i;
    }
    if (now.empty()) break;
    waiting.resize(num_waiting);
    sample_rows(now, rows, row_masks, sampled, session);
    for (const int64_t i : now) {
      record(sampled[static_cast<size_t>(i)]);
      is_sampled[static_cast<size_t>(i)] = true;
    }
  }
  std::vector<SampledToken> followed;
  for (int64_t i = 0; i < num_rows; ++i) {
    const auto at = static_cast<size_t>(i);
    if (is_sampled[at]) followed.push_back(std::move(sampled[at]));
  }
  return followed;
}

void Sampler::sample_rows(const std::vector<int64_t>& now, const std::vector<BlockedLogits>& all,
                          const std::vector<const uint32_t*>& masks,
                          std::vector<SampledToken>& sampled,
                          ThreadPool::Session& session) const {
  std::vector<const Sequence*> sequences;
  for (const int64_t row : now) {
    const auto i = static_cast<size_t>(row);
    if (!all[i].all_finite()) {
      throw NonFiniteError("sequence " + std::to_string(sampled[i].sequence_id) +
                           ": its logits are not finite (NaN or infinity)");
    }
    sequences.push_back(&sequences_.find(sampled[i].sequence_id)->second);
  }
  const auto num_rows = static_cast<int64_t>(now.size());
  const auto sample_row = [&](int64_t at, const Scratch& scratch, ThreadPool::Session* others) {
    const auto i = static_cast<size_t>(now[static_cast<size_t>(at)]);
    sample_one(all[i], {*sequences[static_cast<size_t>(at)], masks[i], scratch, others},
               sampled[i]);
  };
  if (num_rows < session.num_threads()) {
    for (int64_t i = 0; i < num_rows; ++i) sample_row(i, scratch(0), &session);
  } else {
    // Without truncation, every logit is processed about five times: scale, exp, sum ...
    parallel_ranges(session, num_rows, 1, 5 * vocab_size_,
                    [&](int64_t begin, int64_t end, int worker) {
                      for (int64_t i = begin; i < end; ++i) {
                        sample_row(i, scratch(worker), nullptr);
                      }
                    });
  }
}

void Sampler::record(const SampledToken& sampled) {
  if (sampled.is_known) return;
  Sequence& sequence = sequences_.find(sampled.sequence_id)->second;
  recorded_.push_back({sampled.sequence_id, sampled.token, sequence.last,
                       sequence.output_counts.count(sampled.token) == 0});
  sequence.last = {sampled.position, sampled.token};
  if (sequence.keeps_history) ++sequence.output_counts[sampled.token];
}

void Sampler::take_back() {
  for (auto each = recorded_.rbegin(); each != recorded_.rend(); ++each) {
    const auto found = sequences_.find(each->sequence_id);
    if (found == sequences_.end()) continue;
    Sequence& sequence = found->second;
    sequence.last = each->last_before;
    if (!sequence.keeps_history) continue;
    if (each->is_new) {
      sequence.output_counts.erase(each->token);
    } else {
      --sequence.output_counts[each->token];
    }
  }
  recorded_.clear();
}

void Sampler::sample_one(const BlockedLogits& logits, const Row& row, SampledToken& out) const {
  const SamplingParams& params = row.sequence.params;
  if (out.is_known) {
    add_logprobs(logits, row, out);
    return;
  }
  const bool is_adjusted =
      row.sequence.keeps_history || !params.logit_bias.empty() || row.mask != nullptr;
  const BlockedLogits adjusted = is_adjusted ? adjust(logits, row) : logits;
  out.token =
      params.temperature == 0.0f ? adjusted.argmax() : draw(adjusted, row, out.position);
  if (params.logprobs) add_logprobs(logits, row, out);
}

BlockedLogits Sampler::adjust(const BlockedLogits& logits, const Row& row) const {
  const SamplingParams& params = row.sequence.params;
  float* adjusted = row.scratch.adjusted;
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
  for_blocks(row.session, blocks, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kSamplingBlock;
    const int64_t last = std::min(end * kSamplingBlock, vocab_size_);
    if (row.mask == nullptr) {
      std::copy(logits.logits + first, logits.logits + last, adjusted + first);
    } else {
      kernels_.copy_allowed(logits.logits + first, row.mask + first / 32, last - first,
                            adjusted + first);
    }
  });
  // Whatever the parameters, logits stay finite, except those that are not allowed.
  const auto bounded = [](float x) { return std::clamp(x, -FLT_MAX, FLT_MAX); };
  const auto is_allowed = [&](int64_t token) {
    return row.mask == nullptr || (row.mask[token / 32] >> (token % 32) & 1) != 0;
  };
  for (const auto& [token, count] : row.sequence.output_counts) {
    if (!is_allowed(token)) continue;
    float& logit = adjusted[token];
    logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count > 0) {
      logit -= params.frequency_penalty * static_cast<float>(count);
      logit -= params.presence_penalty;
    }
    logit = bounded(logit);
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (is_allowed(token)) adjusted[token] = bounded(adjusted[token] + bias);
  }
  for_blocks(row.session, blocks, [&](int64_t begin, int64_t end) {
    find_masked_maxima(adjusted, vocab_size_, begin, end, row.scratch.maxima);
  });
  return {adjusted, vocab_size_, row.scratch.maxima};
}

int64_t Sampler::draw(const BlockedLogits& adjusted, const Row& row, int64_t position) const {
  const SamplingParams& params = row.sequence.params;
  // The middle of the interval that a 24-bit number represents. Its lower end would assign all of
  // the first interval to the token with the lowest id, however small its weight.
  const double number =
      static_cast<double>(uniform_draw(params.seed, static_cast<uint64_t>(position))) + 0x1p-25;
  double total = 0.0;
  if (!params.top_k || *params.top_k > std::min(kFew, vocab_size_)) {
    const float largest = adjusted.logits[adjusted.argmax()];
    const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
    for_blocks(row.session, blocks, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kSamplingBlock;
      const int64_t last = std::min(end * kSamplingBlock, vocab_size_);
      kernels_.draw_weights(adjusted.logits + first, last - first, largest, params.temperature,
                            row.scratch.weights + first, row.scratch.sums + begin);
    });
    total = std::accumulate(row.scratch.sums, row.scratch.sums + blocks, 0.0);
  }
  if (const auto token = draw_from_few(adjusted, row, total, number)) return *token;
  return draw_from_all(adjusted, row, total, number);
}

std::optional<int64_t> Sampler::draw_from_few(const BlockedLogits& adjusted, const Row& row,
                                              double total, double number) const {
  const SamplingParams& params = row.sequence.params;
  const Candidates candidates(adjusted, row.scratch.candidates);
  float* weights = row.scratch.weights;  // by tokens
  int64_t kept = 0;
  int32_t* tokens = nullptr;
  if (params.top_k && *params.top_k <= std::min(kFew, vocab_size_)) {
    kept = *params.top_k;
    tokens = candidates.first(kept);
    float logits[kFew];
    float few_weights[kFew];
    double sums[BlockedLogits::num_blocks(kFew)];
    for (int64_t i = 0; i < kept; ++i) logits[i] = adjusted.logits[tokens[i]];
    kernels_.draw_weights(logits, kept, logits[0], params.temperature, few_weights, sums);
    total = 0.0;
    for (int64_t i = 0; i < kept; ++i) {
      weights[tokens[i]] = few_weights[i];
      total += static_cast<double>(few_weights[i]);
    }
    if (params.top_p < 1.0f) {
      const double enough = params.top_p * total;
      double cumulative = 0.0;
      int64_t rank = 0;
      while (rank < kept && (rank == 0 || cumulative < enough)) {
        cumulative += static_cast<double>(weights[tokens[rank++]]);
      }
      kept = rank;
    }
  } else if (params.top_p < 1.0f && (!params.top_k || *params.top_k >= vocab_size_)) {
    const double enough = params.top_p * total;
    double cumulative = 0.0;
    // No weight exceeds 1, nor any of those before it.
    for (int64_t size : {kFirstFew, kFew}) {
      size = std::min(size, vocab_size_);
      const double most = kept == 0 ? 1.0 : static_cast<double>(weights[tokens[kept - 1]]);
      if (cumulative + most * static_cast<double>(size - kept) < enough) return std::nullopt;
      tokens = candidates.first(size);
      while (kept < size && (kept == 0 || cumulative < enough)) {
        cumulative += static_cast<double>(weights[tokens[kept++]]);
      }
      if (cumulative >= enough) break;
    }
    if (cumulative < enough) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (params.min_p > 0.0f) {
    const float least = params.min_p * weights[tokens[0]];
    kept = std::remove_if(tokens, tokens + kept, [&](int32_t t) { return weights[t] < least; }) -
           tokens;
  }
  std::sort(tokens, tokens + kept);
  total = 0.0;
  for (int64_t i = 0; i < kept; ++i) total += static_cast<double>(weights[tokens[i]]);
  const double target = number * total;
  double cumulative = 0.0;
  for (int64_t i = 0; i < kept; ++i) {
    cumulative += static_cast<double>(weights[tokens[i]]);
    if (cumulative > target) return tokens[i];
  }
  // Unreachable: `number` is at most 1 - 2^-25, and the sums are the same.
  return tokens[kept - 1];
}

int64_t Sampler::draw_from_all(const BlockedLogits& adjusted, const Row& row, double total,
                               double number) const {
  const SamplingParams& params = row.sequence.params;
  const float* weights = row.scratch.weights;
  const double* sums = row.scratch.sums;
  CutSearch search(kernels_, adjusted, weights, row.scratch.cut, row.session);
  const double everything = total;
  Cut cut = Cut::nothing();
  if (params.top_k && *params.top_k < vocab_size_) {
    const auto limit = static_cast<double>(*params.top_k);
    cut = search.find(Measure::Tokens, limit, static_cast<double>(vocab_size_));
    total = sum_kept(adjusted, row, cut, 0.0f);
  }
  if (params.top_p < 1.0f) {
    // At least the largest weight is kept.
    const double least = DBL_MIN;
    const Cut nucleus = search.find(Measure::Weight, std::max(params.top_p * total, least), everything);
    if (nucleus.is_narrower_than(cut)) cut = nucleus;
  }
  const float least_weight =
      params.min_p > 0.0f ? params.min_p * weights[adjusted.argmax()] : 0.0f;
  if (params.top_p < 1.0f || params.min_p > 0.0f) total = sum_kept(adjusted, row, cut, least_weight);

  const double target = number * total;
  double cumulative = 0.0;
  int64_t block = 0;
  while (cumulative + sums[block] <= target) cumulative += sums[block++];
  const int64_t first = block * kSamplingBlock;
  const int64_t last = std::min(first + kSamplingBlock, vocab_size_);
  int64_t token = first;
  for (int64_t i = first; i < last; ++i) {
    if (!cut.keeps(adjusted.logits[i], i) || weights[i] < least_weight || weights[i] == 0.0f) {
      continue;
    }
    token = i;
    cumulative += static_cast<double>(weights[i]);
    if (cumulative > target) break;
  }
  // The last one that is kept, if the block's sum was rounded up.
  return token;
}

double Sampler::sum_kept(const BlockedLogits& adjusted, const Row& row, const Cut& cut,
                         float least_weight) const {
  double* sums = row.scratch.sums;
  const int64_t blocks = BlockedLogits::num_blocks(vocab_size_);
  const auto sum_blocks = [&](int64_t begin, int64_t end, float least) {
    const int64_t first = begin * kSamplingBlock;
    const int64_t last = std::min(end * kSamplingBlock, vocab_size_);
    if (first >= last) return;
    kernels_.kept_sums(adjusted.logits + first, row.scratch.weights + first, last - first, least,
                       least_weight, sums + begin);
  };
  // In blocks after the last tie that is kept, those equal to `least` are not kept.
  const int64_t tie_block = std::min(cut.last_tie / kSamplingBlock, blocks);
  const float more = std::nextafter(cut.least, std::numeric_limits<float>::infinity());
  for_blocks(row.session, blocks, [&](int64_t begin, int64_t end) {
    sum_blocks(begin, std::min(end, tie_block), cut.least);
    sum_blocks(std::max(begin, tie_block + 1), end, more);
  });
  if (tie_block < blocks) {
    double total = 0.0;
    const int64_t first = tie_block * kSamplingBlock;
    for (int64_t i = first; i < std::min(first + kSamplingBlock, vocab_size_); ++i) {
      const float weight = row.scratch.weights[i];
      if (cut.keeps(adjusted.logits[i], i) && weight >= least_weight) {
        total += static_cast<double>(weight);
      }
    }
    sums[tie_block] = total;
  }
  return std::accumulate(sums, sums + blocks, 0.0);
}

void Sampler::add_logprobs(const BlockedLogits& blocked, const Row& row,
                           SampledToken& out) const {
  const float* logits = blocked.logits;
  const float largest = logits[blocked.argmax()];
  const float sum = kernels_.exp_sum(logits, vocab_size_, largest, row.scratch.weights);
  // In double and rounded once: the C library's logf may differ between machines.
  const float log_sum = static_cast<float>(std::log(static_cast<double>(sum)));
  const auto logprob = [&](int64_t token) { return (logits[token] - largest) - log_sum; };
  out.logprob = logprob(out.token);
  if (out.top.empty()) return;
  const Candidates candidates(blocked, row.scratch.candidates);
  const int32_t* top = candidates.first(static_cast<int64_t>(out.top.size()));
  for (size_t rank = 0; rank < out.top.size(); ++rank) {
    out.top[rank] = {top[rank], logprob(top[rank])};
  }
}

}  // namespace potluck
