#include "program/program.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "kernels/kernels.h"
#include "program/error.h"

namespace potluck {
namespace {

// Sizes above this make no sense, and below it no product of two of them overflows.
constexpr int64_t kMaxSize = int64_t{1} << 31;

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

void check_size(int64_t value, const std::string& what) {
  if (value < 1 || value >= kMaxSize) {
    throw Error(what + " is " + std::to_string(value) + ", and must be from 1 to 2^31 - 1");
  }
}

// Walks the ops once, in order: resolves names, checks shapes, and follows which registers hold
// something.
class Resolver {
 public:
  explicit Resolver(const ProgramSpec& spec) : spec_(spec) {
    check_size(spec.hidden_size, "hidden_size");
    check_size(spec.vocab_size, "vocab_size");
    check_size(spec.context_tokens, "context_tokens");
    for (const Register& reg : spec.registers) {
      check_size(reg.width, "the width of register '" + reg.name + "'");
      if (!registers_.emplace(reg.name, static_cast<int>(registers_.size())).second) {
        throw Error("register '" + reg.name + "' is declared twice");
      }
    }
    for (const WeightSpec& weight : spec.weights) {
      if (weight.shape.empty() || weight.shape.size() > 3) {
        throw Error("weight '" + weight.name + "' is no vector, matrix or stack of matrices");
      }
      for (int64_t size : weight.shape) check_size(size, "a size of weight '" + weight.name + "'");
      if (weight.shape.size() == 3) {
        check_size(weight.shape[0] * weight.shape[1], "the rows of weight '" + weight.name + "'");
      }
      if (!weights_.emplace(weight.name, static_cast<int>(weights_.size())).second) {
        throw Error("weight '" + weight.name + "' is listed twice");
      }
    }
    for (const CacheSpec& cache : spec.caches) {
      check_size(cache.num_kv_heads, "num_kv_heads of a cache");
      check_size(cache.head_dim, "head_dim of a cache");
    }
    const auto hidden = registers_.find("hidden");
    if (hidden == registers_.end()) throw Error("the program has no register 'hidden'");
    hidden_ = hidden->second;
    if (spec.registers[hidden_].width != spec.hidden_size) {
      throw Error("register 'hidden' is not hidden_size wide");
    }
    written_.resize(registers_.size());
    written_[hidden_] = !spec.has_embedding;
    weight_used_.resize(weights_.size());
    cache_used_.resize(spec.caches.size());
    check_rope_table();
  }

  std::vector<op::Resolved> resolve_all() {
    std::vector<op::Resolved> resolved;
    for (index_ = 0; index_ < spec_.ops.size(); ++index_) {
      resolved.push_back(std::visit([this](const auto& o) { return op::Resolved(resolve(o)); },
                                    spec_.ops[index_]));
    }
    check_ends();
    return resolved;
  }

  int hidden() const { return hidden_; }

 private:
  using Name = std::string;

  [[noreturn]] void fail(const std::string& message) const {
    static constexpr const char* kNames[] = {
        "embed", "rms_norm", "linear", "rope", "attention", "gated_activation", "moe", "add",
        "head"};
    throw Error("op " + std::to_string(index_) + " (" + kNames[spec_.ops[index_].index()] +
                "): " + message);
  }

  int find(const Name& name) const {
    const auto found = registers_.find(name);
    if (found == registers_.end()) fail("there is no register '" + name + "'");
    return found->second;
  }

  void want_width(const Name& name, int64_t width) const {
    const int64_t actual = spec_.registers[find(name)].width;
    if (actual != width) {
      fail("register '" + name + "' is " + std::to_string(actual) + " wide, and " +
           std::to_string(width) + " is needed");
    }
  }

  int64_t width(const Name& name) const { return spec_.registers[find(name)].width; }

  int read(const Name& name) const {
    const int index = find(name);
    if (!written_[index]) fail("register '" + name + "' is read before it is written");
    return index;
  }

  int write(const Name& name) {
    const int index = find(name);
    written_[index] = true;
    return index;
  }

  void want_different(const Name& a, const Name& b) const {
    if (a == b) fail("register '" + a + "' cannot be input and output at once");
  }

  int weight(const Name& name, const std::vector<int64_t>& shape) {
    const auto found = weights_.find(name);
    if (found == weights_.end()) fail("there is no weight '" + name + "'");
    const std::vector<int64_t>& actual = spec_.weights[found->second].shape;
    if (actual != shape) {
      fail("weight '" + name + "' has shape " + shape_text(actual) + ", and " +
           shape_text(shape) + " is needed");
    }
    weight_used_[found->second] = true;
    return found->second;
  }

  void want_heads(int64_t num_heads, int64_t head_dim) const {
    if (num_heads < 1 || num_heads >= kMaxSize) fail("num_heads must be at least 1");
    if (head_dim < 8 || head_dim >= kMaxSize || head_dim % 8 != 0) {
      fail("head_dim is " + std::to_string(head_dim) + ", and must be a multiple of 8");
    }
  }

  op::Embed<int> resolve(const op::Embed<Name>& o) {
    const int table = weight(o.weight, {spec_.vocab_size, width(o.out)});
    return {table, write(o.out)};
  }

  op::RmsNorm<int> resolve(const op::RmsNorm<Name>& o) {
    if (o.group < 1 || width(o.x) % o.group != 0) fail("group does not divide the width");
    if (!std::isfinite(o.epsilon) || o.epsilon < 0) fail("epsilon must be finite and not negative");
    want_width(o.out, width(o.x));
    const int scale = weight(o.weight, {o.group});
    const int x = read(o.x);
    return {x, scale, write(o.out), o.group, o.epsilon};
  }

  op::Linear<int> resolve(const op::Linear<Name>& o) {
    want_different(o.x, o.out);
    const int matrix = weight(o.weight, {width(o.out), width(o.x)});
    std::optional<int> bias;
    if (o.bias) bias = weight(*o.bias, {width(o.out)});
    const int x = read(o.x);
    return {x, matrix, write(o.out), bias};
  }

  op::Rope<int> resolve(const op::Rope<Name>& o) {
    want_heads(o.num_heads, o.head_dim);
    want_width(o.x, o.num_heads * o.head_dim);
    if (spec_.rope.half_head_dim * 2 != o.head_dim) {
      fail("the program has no rope table for heads of " + std::to_string(o.head_dim));
    }
    return {read(o.x), o.num_heads, o.head_dim};
  }

  op::Attention<int> resolve(const op::Attention<Name>& o) {
    want_heads(o.num_heads, o.head_dim);
    want_heads(o.num_kv_heads, o.head_dim);
    if (o.num_heads % o.num_kv_heads != 0) fail("num_kv_heads does not divide num_heads");
    for (const Name* name : {&o.q, &o.out}) want_width(*name, o.num_heads * o.head_dim);
    for (const Name* name : {&o.k, &o.v}) want_width(*name, o.num_kv_heads * o.head_dim);
    for (const Name* name : {&o.q, &o.k, &o.v}) want_different(*name, o.out);
    if (!std::isfinite(o.scale)) fail("scale must be finite");
    if (o.window && *o.window < 1) fail("window must be at least 1");
    if (o.cache_index < 0 || o.cache_index >= static_cast<int64_t>(spec_.caches.size())) {
      fail("there is no cache " + std::to_string(o.cache_index));
    }
    const CacheSpec& cache = spec_.caches[o.cache_index];
    if (cache.num_kv_heads != o.num_kv_heads || cache.head_dim != o.head_dim) {
      fail("cache " + std::to_string(o.cache_index) + " has other heads");
    }
    if (cache_used_[o.cache_index]) {
      fail("cache " + std::to_string(o.cache_index) + " is used by another op");
    }
    cache_used_[o.cache_index] = true;
    const int q = read(o.q), k = read(o.k), v = read(o.v);
    return {q,           k,          v,       write(o.out), o.cache_index, o.num_heads,
            o.num_kv_heads, o.head_dim, o.scale, o.window};
  }

  op::GatedActivation<int> resolve(const op::GatedActivation<Name>& o) {
    want_width(o.up, width(o.gate));
    want_width(o.out, width(o.gate));
    const int gate = read(o.gate), up = read(o.up);
    return {gate, up, write(o.out)};
  }

  op::Moe<int> resolve(const op::Moe<Name>& o) {
    if (o.num_experts < 1 || o.num_experts >= kMaxSize) fail("num_experts must be at least 1");
    if (o.num_experts_per_token < 1 || o.num_experts_per_token > o.num_experts) {
      fail("num_experts_per_token must be from 1 to num_experts");
    }
    want_width(o.logits, o.num_experts);
    want_different(o.logits, o.out);
    // So that every expert is a range of panels.
    for (const int64_t rows : {o.expert_width, width(o.out)}) {
      if (rows < 1 || rows >= kMaxSize || rows % kPanelRows != 0) {
        fail("experts have " + std::to_string(rows) + " rows, which must be a multiple of " +
             std::to_string(kPanelRows));
      }
    }
    const int gate = weight(o.gate, {o.num_experts, o.expert_width, width(o.x)});
    const int up = weight(o.up, {o.num_experts, o.expert_width, width(o.x)});
    const int down = weight(o.down, {o.num_experts, width(o.out), o.expert_width});
    const int x = read(o.x), logits = read(o.logits);
    return {x,    logits,        gate,          up,
            down, write(o.out),  o.num_experts, o.num_experts_per_token,
            o.expert_width, o.normalize_shares};
  }

  op::Add<int> resolve(const op::Add<Name>& o) {
    want_width(o.y, width(o.x));
    return {read(o.x), read(o.y)};
  }

  op::Head<int> resolve(const op::Head<Name>& o) {
    if (o.vocab_size != spec_.vocab_size) fail("vocab_size is not the program's");
    std::optional<int> matrix;
    if (o.weight) matrix = weight(*o.weight, {spec_.vocab_size, width(o.x)});
    return {read(o.x), matrix, o.vocab_size};
  }

  void check_rope_table() const {
    const RopeTable& rope = spec_.rope;
    if (rope.cos != nullptr && rope.num_positions != spec_.context_tokens) {
      throw Error("the rope table does not have one row per position of the context");
    }
  }

  void check_ends() const {
    const auto holds = [this](auto is_it, size_t wanted_index) {
      for (size_t i = 0; i < spec_.ops.size(); ++i) {
        if (is_it(spec_.ops[i]) != (i == wanted_index)) return false;
      }
      return true;
    };
    const auto is_embed = [](const op::Named& o) {
      return std::holds_alternative<op::Embed<Name>>(o);
    };
    const auto is_head = [](const op::Named& o) {
      return std::holds_alternative<op::Head<Name>>(o);
    };
    const size_t num_ops = spec_.ops.size();
    if (num_ops == 0 && (spec_.has_embedding || spec_.has_head)) {
      throw Error("the program has no ops, but an embedding or a head");
    }
    if (!holds(is_embed, spec_.has_embedding ? 0 : num_ops)) {
      throw Error("a program begins with 'embed' if it has the embedding, and has it nowhere else");
    }
    if (!holds(is_head, spec_.has_head ? num_ops - 1 : num_ops)) {
      throw Error("a program ends with 'head' if it has the head, and has it nowhere else");
    }
    if (!spec_.has_head && !written_[hidden_]) throw Error("register 'hidden' is never written");
    for (size_t i = 0; i < weight_used_.size(); ++i) {
      if (!weight_used_[i]) throw Error("weight '" + spec_.weights[i].name + "' is never used");
    }
    for (size_t i = 0; i < cache_used_.size(); ++i) {
      if (!cache_used_[i]) throw Error("cache " + std::to_string(i) + " is never used");
    }
  }

  const ProgramSpec& spec_;
  std::unordered_map<std::string, int> registers_;
  std::unordered_map<std::string, int> weights_;
  std::vector<bool> written_;
  std::vector<bool> weight_used_;
  std::vector<bool> cache_used_;
  size_t index_ = 0;
  int hidden_ = -1;
};

}  // namespace

Program::Program(ProgramSpec spec) : spec_(std::move(spec)) {
  Resolver resolver(spec_);
  ops_ = resolver.resolve_all();
  hidden_ = resolver.hidden();
  if (!spec_.has_head) return;
  const auto& head = std::get<op::Head<int>>(ops_.back());
  head_input_ = head.x;
  has_logits_ = head.weight.has_value();
}

int64_t Program::max_width() const {
  int64_t width = 0;
  for (const Register& reg : spec_.registers) width = std::max(width, reg.width);
  return width;
}

}  // namespace potluck
