// A step's slices, validated and flattened: one row per token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"

namespace potluck {

// Like potluck.types.step.Pooling.
enum class Pooling { Last, Cls, Mean };

// Like potluck.types.step.SequenceSlice.
struct Slice {
  int64_t sequence_id;
  std::vector<int64_t> tokens;
  int64_t start_position;
  std::vector<int64_t> block_table;
  bool sample;
  std::optional<int64_t> score_from = std::nullopt;
  std::optional<int64_t> next_token = std::nullopt;
  std::optional<Pooling> pooling = std::nullopt;
  bool ends_pooling = false;
  std::optional<int64_t> state = std::nullopt;
  int64_t num_drafts = 0;
};

// Like potluck.types.step.BlockCopy.
struct BlockCopy {
  int64_t source;
  int64_t target;
};

// Like potluck.types.step.StateCopy.
struct StateCopy {
  int64_t source;
  int64_t target;
};

// Limits of a stage for one step.
struct BatchLimits {
  int64_t max_tokens;
  std::optional<int64_t> num_blocks;  // 0: without caches, block tables are ignored
  std::optional<int64_t> num_states;  // likewise for states
  int64_t context_tokens;
  int64_t vocab_size;
};

struct BatchRow {
  int64_t token;
  int64_t position;
  const int32_t* block_table;  // of the sequence
  bool is_prefill;             // see RowRange
};

// Rows [begin, end) that are computed in the same way. A slice of one token is a decode, and so are
// the last chunk of a prompt if it has one token, and a slice with drafts; any other slice is
// prefill.
struct RowRange {
  int64_t begin;
  int64_t end;
  bool is_prefill;
};

// Rows [first_row, first_row + num_tokens) of one sequence, at positions from `position` on. Its
// states are in the slot `state`, if the stage has any.
struct BatchSlice {
  int64_t first_row;
  int64_t num_tokens;
  int64_t position;
  int64_t state = 0;
};

// A row whose logits are requested: those of a slice from `score_from` on, the last one with
// `sample`, and then also those of drafts and the one before them.
struct WantedRow {
  int64_t row;
  int64_t sequence_id;
  int64_t next_position;         // position of the following token
  std::optional<int64_t> known;  // the following token, if scored, not sampled
  // The row's own token, if it is a draft: it is followed by a result only if it was the last token
  // sampled for the sequence, at its position.
  std::optional<int64_t> draft = std::nullopt;
  int64_t mask_row = 0;  // of those of the sequence, if it is sampled
};

// Throws Error for a block that does not exist, or a copy of a block to itself.
void check_copies(const std::vector<BlockCopy>& copies, const BatchLimits& limits);

// Throws Error for a slot that does not exist, or a copy of a slot to itself.
void check_state_copies(const std::vector<StateCopy>& copies, const BatchLimits& limits);

// A slice whose rows are pooled into a vector.
struct PooledSlice {
  BatchSlice rows;
  int64_t sequence_id;
  Pooling pooling;
  bool is_last;
};

class Batch {
 public:
  // Throws Error, naming the sequence, for a slice without tokens, a token outside the vocabulary,
  // a position outside the context, scores that start after the last token of the slice or with a
  // last token that is sampled, tokens that are to be pooled and also sampled or scored, more
  // drafts than tokens, drafts that are not sampled or that are scored, a block table that is too
  // short or names a nonexistent block, a missing or nonexistent state slot if there are states, a
  // sequence that appears twice, a block that is written by one slice and used by another, and a
  // slot that two slices use.
  Batch(const std::vector<Slice>& slices, const BatchLimits& limits);

  // The rows [begin, end) of another batch, which must outlive it: they are computed as in that
  // batch. No logits or vectors are requested for them.
  Batch(const Batch& whole, int64_t begin, int64_t end);

  const std::vector<BatchRow>& rows() const { return rows_; }
  // All rows in order; adjacent ranges differ in kind.
  const std::vector<RowRange>& ranges() const { return ranges_; }
  const std::vector<BatchSlice>& slices() const { return slices_; }
  const std::vector<WantedRow>& wanted() const { return wanted_; }
  const std::vector<PooledSlice>& pooled() const { return pooled_; }
  int64_t num_tokens() const { return static_cast<int64_t>(rows_.size()); }

 private:
  // For a slice whose rows start at `first_row`.
  void add_wanted(const Slice& slice, int64_t first_row);

  std::vector<BatchRow> rows_;
  std::vector<RowRange> ranges_;
  std::vector<BatchSlice> slices_;
  std::vector<WantedRow> wanted_;
  std::vector<PooledSlice> pooled_;
  std::vector<int32_t> blocks_;
};

}  // namespace potluck
