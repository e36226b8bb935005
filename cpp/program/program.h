// A program that has been checked: names resolved to indices, every width and shape consistent.
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
  int64_t value_dim;  // 0 where values are columns of the keys
};

// float32 [rows][width] of a sequence; the cache may have more (StateLayout).
struct StateSpec {
  int64_t rows;
  int64_t width;
};

// [num_positions][num_pairs] each. Not copied, as it takes 67 MB for a long context: `owner` keeps
// it alive, and nobody changes it.
struct RopeTable {
  int64_t num_positions;
  int64_t num_pairs;
  const float* cos;
  const float* sin;
  std::shared_ptr<const void> owner;
};

// What comes in, as potluck.types.program.Program has it.
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
};

// Immutable, so several stages may share one.
class Program {
 public:
  // Throws Error, naming the op, when anything in `spec` is unknown, missing or contradicts
  // another part of it.
  explicit Program(ProgramSpec spec);

  const ProgramSpec& spec() const { return spec_; }
  const std::vector<op::Resolved>& ops() const { return ops_; }
  int64_t width(int register_index) const { return spec_.registers[register_index].width; }
  // The register that goes from stage to stage.
  int hidden() const { return hidden_; }
  // The input of the head, or -1 without one.
  int head_input() const { return head_input_; }
  // Whether it has a head that has a weight.
  bool has_logits() const { return has_logits_; }

  int64_t max_width() const;

 private:
  ProgramSpec spec_;
  std::vector<op::Resolved> ops_;
  int hidden_ = -1;
  int head_input_ = -1;
  bool has_logits_ = false;
};

}  // namespace potluck
