// A step's slices, checked and laid out flat: one row per token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"

namespace potluck {

// As potluck.types.step.Pooling.
enum class Pooling { Last, Cls, Mean };

// As potluck.types.step.SequenceSlice.
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
};

// As potluck.types.step.BlockCopy.
struct BlockCopy {
  int64_t source;
  int64_t target;
};

// As potluck.types.step.StateCopy.
struct StateCopy {
  int64_t source;
  int64_t target;
};

// What a stage can take in one step.
struct BatchLimits {
  int64_t max_tokens;
  std::optional<int64_t> num_blocks;  // none: without caches block tables do not matter
  std::optional<int64_t> num_states;  // likewise without states
  int64_t context_tokens;
  int64_t vocab_size;
};

struct BatchRow {
  int64_t token;
  int64_t position;
  const int32_t* block_table;  // of the sequence
  bool is_prefill;             // see RowRange
};

// Rows [begin, end) that are computed alike. A slice of one token is a decode, and so is the last
// chunk of a prompt if it has one; one of more tokens is prefill.
struct RowRange {
  int64_t begin;
  int64_t end;
  bool is_prefill;
};

// Rows [first_row, first_row + num_tokens), of one sequence, at positions from `position` on. Its
// states are in the slot `state`, where the stage has any.
struct BatchSlice {
  int64_t first_row;
  int64_t num_tokens;
  int64_t position;
  int64_t state = 0;
};

// A row whose logits are wanted: those of a slice from `score_from` on, and the last with `sample`.
struct WantedRow {
  int64_t row;
  int64_t sequence_id;
  int64_t next_position;         // where the token stands that follows
  std::optional<int64_t> known;  // it, if it is scored and not sampled
};

// Throws Error for a block that does not exist, and for a copy of a block to itself.
void check_copies(const std::vector<BlockCopy>& copies, const BatchLimits& limits);

// Throws Error for a slot that does not exist, and for a copy of a slot to itself.
void check_state_copies(const std::vector<StateCopy>& copies, const BatchLimits& limits);

// A slice whose rows go into a vector.
struct PooledSlice {
  BatchSlice rows;
  int64_t sequence_id;
  Pooling pooling;
  bool is_last;
};

class Batch {
 public:
  // Throws Error, naming the sequence, for a slice without tokens, a token outside the vocabulary,
  // a position outside the context, scores from no token of the slice on or of a last token that is
  // sampled, tokens that are to be pooled and sampled or scored, a block table that is too short or names a block that does not
  // exist, no state slot where there are states or one that does not exist, a sequence that appears
  // twice, a block that one slice writes and another one has, and a slot that two slices have.
  Batch(const std::vector<Slice>& slices, const BatchLimits& limits);

  const std::vector<BatchRow>& rows() const { return rows_; }
  // All rows in order; neighbouring ranges differ.
  const std::vector<RowRange>& ranges() const { return ranges_; }
  const std::vector<BatchSlice>& slices() const { return slices_; }
  const std::vector<WantedRow>& wanted() const { return wanted_; }
  const std::vector<PooledSlice>& pooled() const { return pooled_; }
  int64_t num_tokens() const { return static_cast<int64_t>(rows_.size()); }

 private:
  std::vector<BatchRow> rows_;
  std::vector<RowRange> ranges_;
  std::vector<BatchSlice> slices_;
  std::vector<WantedRow> wanted_;
  std::vector<PooledSlice> pooled_;
  std::vector<int32_t> blocks_;
};

}  // namespace potluck
