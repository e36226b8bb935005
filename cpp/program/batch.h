// A step's slices, checked and laid out flat: one row per token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"

namespace potluck {

// As potluck.types.step.SequenceSlice.
struct Slice {
  int64_t sequence_id;
  std::vector<int64_t> tokens;
  int64_t start_position;
  std::vector<int64_t> block_table;
  bool sample;
};

// What a stage can take in one step.
struct BatchLimits {
  int64_t max_tokens;
  std::optional<int64_t> num_blocks;  // none: without caches block tables do not matter
  int64_t context_tokens;
  int64_t vocab_size;
};

struct BatchRow {
  int64_t token;
  int64_t position;
  const int32_t* block_table;  // of the sequence
};

// Rows [begin, end) that are computed alike. A slice of one token is a decode, and so is the last
// chunk of a prompt if it has one; one of more tokens is prefill.
struct RowRange {
  int64_t begin;
  int64_t end;
  bool is_prefill;
};

// A row whose logits are wanted: the last one of a slice with `sample`.
struct WantedRow {
  int64_t row;
  int64_t sequence_id;
  int64_t next_position;  // where the token to be sampled will stand
};

class Batch {
 public:
  // Throws Error, naming the sequence, for a slice without tokens, a token outside the vocabulary,
  // a position outside the context, a block table that is too short or names a block that does not
  // exist, a sequence that appears twice, and a block that one slice writes and another one has.
  Batch(const std::vector<Slice>& slices, const BatchLimits& limits);

  const std::vector<BatchRow>& rows() const { return rows_; }
  // All rows in order; neighbouring ranges differ.
  const std::vector<RowRange>& ranges() const { return ranges_; }
  const std::vector<WantedRow>& wanted() const { return wanted_; }
  int64_t num_tokens() const { return static_cast<int64_t>(rows_.size()); }

 private:
  std::vector<BatchRow> rows_;
  std::vector<RowRange> ranges_;
  std::vector<WantedRow> wanted_;
  std::vector<int32_t> blocks_;
};

}  // namespace potluck
