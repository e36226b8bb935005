#include "program/batch.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "kernels/kernels.h"
#include "program/error.h"

namespace potluck {
namespace {

[[noreturn]] void fail(const Slice& slice, const std::string& message) {
  throw Error("sequence " + std::to_string(slice.sequence_id) + ": " + message);
}

int64_t end_position(const Slice& slice) {
  return slice.start_position + static_cast<int64_t>(slice.tokens.size());
}

// Number of blocks that hold positions [0, end).
int64_t blocks_for(int64_t end) { return (end + kBlockTokens - 1) / kBlockTokens; }

void check_scored(const Slice& slice, const BatchLimits& limits) {
  if (!slice.score_from) {
    if (slice.next_token) fail(slice, "a next token is given, and nothing is scored");
    return;
  }
  if (*slice.score_from < 0 || *slice.score_from >= static_cast<int64_t>(slice.tokens.size())) {
    fail(slice, "there is no token " + std::to_string(*slice.score_from) + " to score from");
  }
  if (slice.sample == slice.next_token.has_value()) {
    fail(slice, "what follows the last token is either sampled or known and scored");
  }
  if (slice.next_token && (*slice.next_token < 0 || *slice.next_token >= limits.vocab_size)) {
    fail(slice, "token " + std::to_string(*slice.next_token) + " is not within the vocabulary of " +
                    std::to_string(limits.vocab_size));
  }
}

void check_drafts(const Slice& slice) {
  if (slice.num_drafts == 0) return;
  const auto num_tokens = static_cast<int64_t>(slice.tokens.size());
  if (slice.num_drafts < 0 || slice.num_drafts > num_tokens) {
    fail(slice, std::to_string(slice.num_drafts) + " of its " + std::to_string(num_tokens) +
                    " tokens are drafts");
  }
  if (!slice.sample || slice.score_from) fail(slice, "it has drafts and is not only sampled");
}

void check_pooled(const Slice& slice) {
  if (!slice.pooling) {
    if (slice.ends_pooling) fail(slice, "the end of its pooling is given, and it is not pooled");
    return;
  }
  if (slice.sample || slice.score_from) fail(slice, "it is pooled and sampled or scored");
  if (slice.ends_pooling && *slice.pooling == Pooling::Cls && slice.start_position != 0) {
    fail(slice, "the state of its first token is wanted, and the slice does not have it");
  }
}

void check_state(const Slice& slice, int64_t num_states) {
  if (!slice.state) fail(slice, "it has no state slot, and the model keeps states");
  if (*slice.state < 0 || *slice.state >= num_states) {
    fail(slice, "there is no state slot " + std::to_string(*slice.state) + " (there are " +
                    std::to_string(num_states) + ")");
  }
}

void check_slice(const Slice& slice, const BatchLimits& limits) {
  if (slice.tokens.empty()) fail(slice, "the slice has no tokens");
  if (slice.start_position < 0 || slice.start_position >= limits.context_tokens ||
      end_position(slice) > limits.context_tokens) {
    fail(slice, "positions [" + std::to_string(slice.start_position) + ", +" +
                    std::to_string(slice.tokens.size()) + ") are not within the context of " +
                    std::to_string(limits.context_tokens));
  }
  for (const int64_t token : slice.tokens) {
    if (token < 0 || token >= limits.vocab_size) {
      fail(slice, "token " + std::to_string(token) + " is not within the vocabulary of " +
                      std::to_string(limits.vocab_size));
    }
  }
  check_drafts(slice);
  check_scored(slice, limits);
  check_pooled(slice);
  if (limits.num_states) check_state(slice, *limits.num_states);
  if (!limits.num_blocks) return;
  const int64_t num_needed = blocks_for(end_position(slice));
  if (static_cast<int64_t>(slice.block_table.size()) < num_needed) {
    fail(slice, "a block table of " + std::to_string(slice.block_table.size()) +
                    " blocks does not reach position " + std::to_string(end_position(slice) - 1));
  }
  for (int64_t i = 0; i < num_needed; ++i) {
    if (slice.block_table[i] < 0 || slice.block_table[i] >= *limits.num_blocks) {
      fail(slice, "there is no cache block " + std::to_string(slice.block_table[i]) +
                      " (there are " + std::to_string(*limits.num_blocks) + ")");
    }
  }
}

// A block that is written may appear once in the whole step; one that is only read (a common
// prefix) may appear any number of times.
void check_sharing(const std::vector<Slice>& slices) {
  std::unordered_map<int64_t, int64_t> num_uses;
  for (const Slice& slice : slices) {
    for (int64_t i = 0; i < blocks_for(end_position(slice)); ++i) ++num_uses[slice.block_table[i]];
  }
  for (const Slice& slice : slices) {
    const int64_t end = blocks_for(end_position(slice));
    for (int64_t i = slice.start_position / kBlockTokens; i < end; ++i) {
      if (num_uses[slice.block_table[i]] > 1) {
        fail(slice, "cache block " + std::to_string(slice.block_table[i]) +
                        " is written here and used elsewhere in the same step");
      }
    }
  }
}

// All slots are written.
void check_states(const std::vector<Slice>& slices) {
  std::unordered_set<int64_t> states;
  for (const Slice& slice : slices) {
    if (!states.insert(*slice.state).second) {
      fail(slice, "state slot " + std::to_string(*slice.state) +
                      " is that of another sequence in the same step");
    }
  }
}

}  // namespace

void check_copies(const std::vector<BlockCopy>& copies, const BatchLimits& limits) {
  if (!limits.num_blocks) return;
  for (const BlockCopy& copy : copies) {
    for (const int64_t block : {copy.source, copy.target}) {
      if (block < 0 || block >= *limits.num_blocks) {
        throw Error("there is no cache block " + std::to_string(block) + " to copy (there are " +
                    std::to_string(*limits.num_blocks) + ")");
      }
    }
    if (copy.source == copy.target) {
      throw Error("cache block " + std::to_string(copy.source) + " is copied to itself");
    }
  }
}

void check_state_copies(const std::vector<StateCopy>& copies, const BatchLimits& limits) {
  if (!limits.num_states) return;
  for (const StateCopy& copy : copies) {
    for (const int64_t state : {copy.source, copy.target}) {
      if (state < 0 || state >= *limits.num_states) {
        throw Error("there is no state slot " + std::to_string(state) + " to copy (there are " +
                    std::to_string(*limits.num_states) + ")");
      }
    }
    if (copy.source == copy.target) {
      throw Error("state slot " + std::to_string(copy.source) + " is copied to itself");
    }
  }
}

Batch::Batch(const std::vector<Slice>& slices, const BatchLimits& limits) {
  size_t num_tokens = 0;
  size_t num_blocks = 0;
  std::unordered_set<int64_t> sequences;
  for (const Slice& slice : slices) {
    check_slice(slice, limits);
    if (!sequences.insert(slice.sequence_id).second) fail(slice, "it appears twice in one step");
    num_tokens += slice.tokens.size();
    if (limits.num_blocks) num_blocks += static_cast<size_t>(blocks_for(end_position(slice)));
  }
  if (num_tokens > static_cast<size_t>(limits.max_tokens)) {
    throw Error("a step of " + std::to_string(num_tokens) + " tokens is more than the " +
                std::to_string(limits.max_tokens) + " that the stage was made for");
  }
  if (limits.num_blocks) check_sharing(slices);
  if (limits.num_states) check_states(slices);

  rows_.reserve(num_tokens);
  blocks_.reserve(num_blocks);  // never grows: rows point into it
  for (const Slice& slice : slices) {
    const int32_t* table = blocks_.data() + blocks_.size();
    if (limits.num_blocks) {
      for (int64_t i = 0; i < blocks_for(end_position(slice)); ++i) {
        blocks_.push_back(static_cast<int32_t>(slice.block_table[i]));
      }
    }
    slices_.push_back({static_cast<int64_t>(rows_.size()),
                       static_cast<int64_t>(slice.tokens.size()), slice.start_position,
                       slice.state.value_or(0)});
    if (slice.pooling) {
      pooled_.push_back({slices_.back(), slice.sequence_id, *slice.pooling, slice.ends_pooling});
    }
    int64_t position = slice.start_position;
    const bool is_prefill = slice.tokens.size() > 1 && slice.num_drafts == 0;
    const auto begin = static_cast<int64_t>(rows_.size());
    for (const int64_t token : slice.tokens) {
      rows_.push_back({token, position++, table, is_prefill});
    }
    const auto end = static_cast<int64_t>(rows_.size());
    if (!ranges_.empty() && ranges_.back().is_prefill == is_prefill) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end, is_prefill});
    }
    add_wanted(slice, begin);
  }
}

Batch::Batch(const Batch& whole, int64_t begin, int64_t end)
    : rows_(whole.rows_.begin() + begin, whole.rows_.begin() + end) {
  for (const RowRange& range : whole.ranges_) {
    const int64_t first = std::max(range.begin, begin), last = std::min(range.end, end);
    if (first < last) ranges_.push_back({first - begin, last - begin, range.is_prefill});
  }
  for (const BatchSlice& slice : whole.slices_) {
    const int64_t first = std::max(slice.first_row, begin);
    const int64_t last = std::min(slice.first_row + slice.num_tokens, end);
    if (first >= last) continue;
    slices_.push_back({first - begin, last - first, slice.position + first - slice.first_row,
                       slice.state});
  }
}

void Batch::add_wanted(const Slice& slice, int64_t first_row) {
  const auto num_rows = static_cast<int64_t>(slice.tokens.size());
  const int64_t first_draft = num_rows - slice.num_drafts;
  const int64_t unscored =
      slice.sample ? std::max<int64_t>(0, first_draft - 1) : num_rows;
  const int64_t first_sampled = slice.num_drafts > 0 ? unscored : num_rows - 1;
  for (int64_t i = slice.score_from.value_or(unscored); i < num_rows; ++i) {
    WantedRow wanted{first_row + i, slice.sequence_id, slice.start_position + i + 1, std::nullopt};
    if (slice.num_drafts == 0) {
      wanted.known = i + 1 < num_rows ? slice.tokens[static_cast<size_t>(i) + 1] : slice.next_token;
    } else if (i >= first_draft) {
      wanted.draft = slice.tokens[static_cast<size_t>(i)];
    }
    wanted.mask_row = std::max<int64_t>(0, i - first_sampled);
    wanted_.push_back(wanted);
  }
}

}  // namespace potluck
