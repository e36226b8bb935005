// A validated program: names resolved to indices, every width and shape consistent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "program/op.h"

namespace potluck {

struct Register {
  std::string name;
  int64_t width;
};

struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;
};

struct CacheSpec {
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t value_dim;  // 0 if values are columns of the keys
};

// float32 [rows][width] per sequence; the cache may pad it (StateLayout).
struct StateSpec {
  int64_t rows;
  int64_t width;
};

// [num_positions][num_pairs] each. Not copied, as it takes 67 MB for a long context: `owner` keeps
// it alive, and nobody modifies it.
struct RopeTable {
  int64_t num_positions;
  int64_t num_pairs;
  const float* cos;
  const float* sin;
  std::shared_ptr<const void> owner;
};

// The input, like potluck.types.program.Program.
struct ProgramSpec {
  std::vector<Register> registers;
  std::vector<op::Named> ops;
  std::vector<WeightSpec> weights;
  std::vector<CacheSpec> caches;
  std::vector<StateSpec> states;
  std::vector<RopeTable> ropes;
  int64_t hidden_size;
  int64_t vocab_size;
  int64_t context_tokens;
  bool has_embedding;
  bool has_head;
  // The member of a group that it belongs to: `num_members` is 1 if there is no group.
  int64_t member = 0;
  int64_t num_members = 1;
};

// Immutable, so several stages may share one.
class Program {
 public:
  // Throws Error, naming the op, if anything in `spec` is unknown, missing or inconsistent.
  explicit Program(ProgramSpec spec);

  const ProgramSpec& spec() const { return spec_; }
  const std::vector<op::Resolved>& ops() const { return ops_; }
  int64_t width(int register_index) const { return spec_.registers[register_index].width; }
  // The register that is passed from stage to stage.
  int hidden() const { return hidden_; }
  // The input of the head, or -1 if there is no head.
  int head_input() const { return head_input_; }
  // Whether it has a head with a weight.
  bool has_logits() const { return has_logits_; }

  // Whether it belongs to a member of a group.
  bool is_part() const { return spec_.num_members > 1; }
  // Whether another member of its group leads the stage, and returns the results of steps.
  bool is_led() const { return spec_.member > 0; }
  // The rows [begin, end) of the vocabulary whose logits it computes; all of them, if the head is
  // not divided.
  struct Rows {
    int64_t begin;
    int64_t end;
    int64_t count() const { return end - begin; }
  };
  Rows head_rows() const;

  int64_t max_width() const;

 private:
  ProgramSpec spec_;
  std::vector<op::Resolved> ops_;
  int hidden_ = -1;
  int head_input_ = -1;
  bool has_logits_ = false;
};

}  // namespace potluck
