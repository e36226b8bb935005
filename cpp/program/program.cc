#include "program/program.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "kernels/kernels.h"
#include "program/error.h"

namespace potluck {
namespace {

// Limit of sizes that are multiplied by a number of slots, so that the product fits in 64 bits.
constexpr int64_t kMaxStateFloats = int64_t{1} << 36;
// Larger sizes are invalid; the product of two valid sizes does not overflow.
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
    throw Error(what + " is " + std::to_string(value) + ", but must be from 1 to 2^31 - 1");
  }
}

// Processes the ops once, in order: resolves names, checks shapes, and tracks which registers have
// contents.
class Resolver {
 public:
  explicit Resolver(const ProgramSpec& spec) : spec_(spec) {
    check_size(spec.hidden_size, "hidden_size");
    check_size(spec.vocab_size, "vocab_size");
    check_size(spec.context_tokens, "context_tokens");
    if (spec.member < 0 || spec.member >= spec.num_members) {
      throw Error("there is no member " + std::to_string(spec.member) + " of " +
                  std::to_string(spec.num_members));
    }
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
      if (cache.value_dim != 0) check_size(cache.value_dim, "value_dim of a cache");
    }
    int64_t state_floats = 0;
    for (const StateSpec& state : spec.states) {
      check_size(state.rows, "the rows of a state");
      check_size(state.width, "the width of a state");
      if (state.rows * state.width > kMaxStateFloats - state_floats) {
        throw Error("the states of a sequence have more than 2^36 numbers");
      }
      state_floats += state.rows * state.width;
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
    cache_filled_.resize(spec.caches.size());
    state_used_.resize(spec.states.size());
    for (const RopeTable& rope : spec.ropes) {
      if (rope.num_positions != spec.context_tokens) {
        throw Error("a rope table does not have one row per position of the context");
      }
    }
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
    const char* name = std::visit([](const auto& o) { return o.kName; }, spec_.ops[index_]);
    throw Error("op " + std::to_string(index_) + " (" + name + "): " + message);
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

  int find_weight(const Name& name) const {
    const auto found = weights_.find(name);
    if (found == weights_.end()) fail("there is no weight '" + name + "'");
    return found->second;
  }

  int weight(const Name& name, const std::vector<int64_t>& shape) {
    const int index = find_weight(name);
    const std::vector<int64_t>& actual = spec_.weights[index].shape;
    if (actual != shape) {
      fail("weight '" + name + "' has shape " + shape_text(actual) + ", and " +
           shape_text(shape) + " is needed");
    }
    weight_used_[index] = true;
    return index;
  }

  void want_heads(int64_t num_heads, int64_t head_dim) const {
    if (num_heads < 1 || num_heads >= kMaxSize) fail("num_heads must be at least 1");
    if (head_dim < 8 || head_dim >= kMaxSize || head_dim % 8 != 0) {
      fail("head_dim is " + std::to_string(head_dim) + ", but must be a multiple of 8");
    }
  }

  std::optional<int> weight(const std::optional<Name>& name, const std::vector<int64_t>& shape) {
    if (!name) return std::nullopt;
    return weight(*name, shape);
  }

  void want_finite(float value, const char* what) const {
    if (!std::isfinite(value)) fail(std::string(what) + " must be finite");
  }

  void want_softcap(const std::optional<float>& softcap) const {
    if (softcap && !(std::isfinite(*softcap) && *softcap > 0)) {
      fail("softcap must be finite and positive");
    }
  }

  void want_epsilon(float epsilon) const {
    if (!std::isfinite(epsilon) || epsilon < 0) fail("epsilon must be finite and not negative");
  }

  op::Embed<int> resolve(const op::Embed<Name>& o) {
    auto r = op::copy_values<int>(o);
    if (!spec_.has_embedding) fail("the program does not have the embedding");
    r.weight = weight(o.weight, {own_rows(o.bounds, spec_.vocab_size), width(o.out)});
    r.out = write(o.out);
    return r;
  }

  op::RmsNorm<int> resolve(const op::RmsNorm<Name>& o) {
    auto r = op::copy_values<int>(o);
    if (o.group < 1 || width(o.x) % o.group != 0) fail("group does not divide the width");
    want_epsilon(o.epsilon);
    want_width(o.out, width(o.x));
    r.weight = weight(o.weight, {o.group});
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  op::LayerNorm<int> resolve(const op::LayerNorm<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_epsilon(o.epsilon);
    want_width(o.out, width(o.x));
    r.weight = weight(o.weight, {width(o.x)});
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  op::Linear<int> resolve(const op::Linear<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_different(o.x, o.out);
    r.weight = weight(o.weight, {width(o.out), width(o.x)});
    r.bias = weight(o.bias, {width(o.out)});
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  op::AllGather<int> resolve(const op::AllGather<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_members(o.widths.size(), "widths");
    int64_t sum = 0;
    for (const int64_t each : o.widths) {
      if (each < 0 || each >= kMaxSize || each % kPanelRows != 0) {
        fail("widths must be multiples of " + std::to_string(kPanelRows));
      }
      sum += each;
    }
    want_width(o.out, sum);
    want_different(o.x, o.out);
    const int64_t own = o.widths[static_cast<size_t>(spec_.member)];
    if (own != 0) want_width(o.x, own);
    r.x = own != 0 ? read(o.x) : find(o.out);
    r.out = write(o.out);
    return r;
  }

  void want_members(size_t count, const char* what) const {
    if (spec_.num_members == 1) fail("the program is not for a member of a group");
    if (static_cast<int64_t>(count) != spec_.num_members) {
      fail(std::string(what) + " are not those of " + std::to_string(spec_.num_members) +
           " members");
    }
  }

  // How many of `count` rows the program has; all if they are not divided.
  int64_t own_rows(const std::vector<int64_t>& bounds, int64_t count) const {
    if (bounds.empty()) return count;
    want_members(bounds.size() - 1, "bounds");
    if (bounds.front() != 0 || bounds.back() != count) {
      fail("bounds must go from 0 to " + std::to_string(count));
    }
    for (size_t i = 1; i < bounds.size(); ++i) {
      if (bounds[i] <= bounds[i - 1]) fail("bounds must ascend");
    }
    const auto member = static_cast<size_t>(spec_.member);
    return bounds[member + 1] - bounds[member];
  }

  op::Rope<int> resolve(const op::Rope<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_heads(o.num_heads, o.head_dim);
    want_width(o.x, o.num_heads * o.head_dim);
    if (o.table < 0 || o.table >= static_cast<int64_t>(spec_.ropes.size())) {
      fail("there is no rope table " + std::to_string(o.table));
    }
    if (o.rotary_dim < 2 || o.rotary_dim > o.head_dim) {
      fail("rotary_dim must be from 2 to head_dim");
    }
    const RopeTable& table = spec_.ropes[static_cast<size_t>(o.table)];
    if (table.num_pairs * 2 != o.rotary_dim) {
      fail("rope table " + std::to_string(o.table) + " is not one for a rotary_dim of " +
           std::to_string(o.rotary_dim));
    }
    r.x = read(o.x);
    return r;
  }

  op::Attention<int> resolve(const op::Attention<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_heads(o.num_heads, o.head_dim);
    want_heads(o.num_kv_heads, o.head_dim);
    if (o.num_heads % o.num_kv_heads != 0) fail("num_kv_heads does not divide num_heads");
    want_width(o.q, o.num_heads * o.head_dim);
    want_values(o);
    want_width(o.out, o.num_heads * o.value_dim.value_or(o.head_dim));
    want_different(o.q, o.out);
    want_finite(o.scale, "scale");
    if (o.window && *o.window < 1) fail("window must be at least 1");
    want_softcap(o.softcap);
    r.sinks = weight(o.sinks, {o.num_heads});
    r.q = read(o.q);
    resolve_cache(o, r);
    r.out = write(o.out);
    return r;
  }

  void want_values(const op::Attention<Name>& o) const {
    const int64_t value_dim = o.value_dim.value_or(o.head_dim);
    if (value_dim < 1 || value_dim >= kMaxSize) fail("value_dim must be at least 1");
    if (!o.value_start) return;
    if (*o.value_start < 0 || *o.value_start > o.head_dim - value_dim) {
      fail("keys have no " + std::to_string(value_dim) + " columns from " +
           std::to_string(*o.value_start) + " on");
    }
    if (o.v) fail("values are columns of the keys, and have no register");
  }

  // The first op of a cache stores its keys and values in it; the others have none.
  void resolve_cache(const op::Attention<Name>& o, op::Attention<int>& r) {
    const std::string cache_name = "cache " + std::to_string(o.cache_index);
    if (o.cache_index < 0 || o.cache_index >= static_cast<int64_t>(spec_.caches.size())) {
      fail("there is no " + cache_name);
    }
    const CacheSpec& cache = spec_.caches[o.cache_index];
    const int64_t value_dim = o.value_start ? 0 : o.value_dim.value_or(o.head_dim);
    if (cache.num_kv_heads != o.num_kv_heads || cache.head_dim != o.head_dim ||
        cache.value_dim != value_dim) {
      fail(cache_name + " has other heads");
    }
    if (!o.value_start && o.k.has_value() != o.v.has_value()) {
      fail("keys and values come together");
    }
    if (o.k.has_value() == cache_filled_[o.cache_index]) {
      fail(cache_name + (o.k ? " is filled by another op" : " is read before it is filled"));
    }
    cache_filled_[o.cache_index] = true;
    if (!o.k) return;
    want_width(*o.k, o.num_kv_heads * o.head_dim);
    want_different(*o.k, o.out);
    r.k = read(*o.k);
    if (!o.v) return;
    want_width(*o.v, o.num_kv_heads * value_dim);
    want_different(*o.v, o.out);
    r.v = read(*o.v);
  }

  op::HeadLinear<int> resolve(const op::HeadLinear<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_different(o.x, o.out);
    for (const int64_t each : {o.num_heads, o.rows, o.columns}) {
      if (each < 1 || each >= kMaxSize) fail("num_heads, rows and columns must be at least 1");
    }
    want_columns(o.x, o.x_start, o.x_stride, o.num_heads, o.columns);
    want_columns(o.out, o.out_start, o.out_stride, o.num_heads, o.rows);
    want_apart(o.out_stride, o.num_heads, o.rows);
    r.weight = weight(o.weight, {o.num_heads, o.rows, o.columns});
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  op::CopyColumns<int> resolve(const op::CopyColumns<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_different(o.x, o.out);
    for (const int64_t each : {o.num_groups, o.count}) {
      if (each < 1 || each >= kMaxSize) fail("num_groups and count must be at least 1");
    }
    want_columns(o.x, o.x_start, o.x_stride, o.num_groups, o.count);
    want_columns(o.out, o.out_start, o.out_stride, o.num_groups, o.count);
    want_apart(o.out_stride, o.num_groups, o.count);
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  // Whether groups of `count` columns, `stride` apart, starting at `start`, are within the
  // register.
  void want_columns(const Name& name, int64_t start, int64_t stride, int64_t num_groups,
                    int64_t count) const {
    const int64_t columns = width(name);
    if (start < 0 || start > columns || stride < 1 || stride > columns ||
        num_groups > columns + 1 || start + (num_groups - 1) * stride + count > columns) {
      fail("register '" + name + "' does not have all of the columns");
    }
  }

  void want_apart(int64_t stride, int64_t num_groups, int64_t count) const {
    if (num_groups > 1 && stride < count) fail("columns of out are written twice");
  }

  void want_count(int64_t count, const char* what) const {
    if (count < 1 || count >= kMaxSize) {
      fail(std::string(what) + " is " + std::to_string(count) +
           ", but must be from 1 to 2^31 - 1");
    }
  }

  // The state of an op, which belongs to no other op.
  void use_state(int64_t index, int64_t rows, int64_t columns) {
    const std::string state_name = "state " + std::to_string(index);
    if (index < 0 || index >= static_cast<int64_t>(spec_.states.size())) {
      fail("there is no " + state_name);
    }
    const StateSpec& state = spec_.states[static_cast<size_t>(index)];
    if (state.rows != rows || state.width != columns) {
      fail(state_name + " is " + shape_text({state.rows, state.width}) + ", and " +
           shape_text({rows, columns}) + " is needed");
    }
    if (state_used_[static_cast<size_t>(index)]) fail(state_name + " is that of another op");
    state_used_[static_cast<size_t>(index)] = true;
  }

  op::CausalConv<int> resolve(const op::CausalConv<Name>& o) {
    auto r = op::copy_values<int>(o);
    if (o.kernel < 2 || o.kernel > kMaxConvKernel) {
      fail("kernel is " + std::to_string(o.kernel) + ", but must be from 2 to " +
           std::to_string(kMaxConvKernel));
    }
    want_width(o.out, width(o.x));
    use_state(o.state_index, o.kernel - 1, width(o.x));
    r.weight = weight(o.weight, {width(o.x) * o.kernel});
    r.bias = weight(o.bias, {width(o.x)});
    r.x = read(o.x);
    r.out = write(o.out);
    return r;
  }

  op::GatedDelta<int> resolve(const op::GatedDelta<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_count(o.num_heads, "num_heads");
    want_count(o.num_key_heads, "num_key_heads");
    want_count(o.key_dim, "key_dim");
    want_count(o.value_dim, "value_dim");
    if (o.num_heads % o.num_key_heads != 0) fail("num_key_heads does not divide num_heads");
    want_count(o.num_key_heads * o.key_dim, "the width of the keys");
    want_count(o.num_heads * o.value_dim, "the width of the values");
    want_width(o.x, 2 * o.num_key_heads * o.key_dim + o.num_heads * o.value_dim);
    want_width(o.out, o.num_heads * o.value_dim);
    want_epsilon(o.epsilon);
    for (const Name* name : {&o.decay, &o.beta}) {
      want_width(*name, o.num_heads);
      want_different(*name, o.out);
    }
    use_state(o.state_index, o.num_heads * o.key_dim, o.value_dim);
    r.rate = weight(o.rate, {o.num_heads});
    r.decay_bias = weight(o.decay_bias, {o.num_heads});
    r.x = read(o.x);
    r.decay = read(o.decay);
    r.beta = read(o.beta);
    r.out = write(o.out);
    return r;
  }

  op::StateScan<int> resolve(const op::StateScan<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_count(o.num_heads, "num_heads");
    want_count(o.num_groups, "num_groups");
    want_count(o.head_dim, "head_dim");
    want_count(o.state_dim, "state_dim");
    if (o.num_heads % o.num_groups != 0) fail("num_groups does not divide num_heads");
    want_count(o.num_groups * o.state_dim, "the width of b");
    want_count(o.num_heads * o.head_dim, "the width of the inputs");
    want_width(o.x, o.num_heads * o.head_dim + 2 * o.num_groups * o.state_dim);
    want_width(o.step, o.num_heads);
    want_width(o.out, o.num_heads * o.head_dim);
    want_different(o.step, o.out);
    want_finite(o.least_step, "least_step");
    if (o.largest_step) {
      want_finite(*o.largest_step, "largest_step");
      if (*o.largest_step < o.least_step) fail("largest_step is less than least_step");
    }
    use_state(o.state_index, o.num_heads * o.state_dim, o.head_dim);
    r.rate = weight(o.rate, {o.num_heads});
    r.step_bias = weight(o.step_bias, {o.num_heads});
    r.skip = weight(o.skip, {o.num_heads});
    r.x = read(o.x);
    r.step = read(o.step);
    r.out = write(o.out);
    return r;
  }

  op::GatedActivation<int> resolve(const op::GatedActivation<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_gate(o.activation, o.gate.has_value());
    if (o.up_start < 0 || width(o.up) - o.up_start < width(o.out)) {
      fail("register '" + o.up + "' does not have the columns of '" + o.out + "' from " +
           std::to_string(o.up_start) + " on");
    }
    if (o.up_start != 0) want_different(o.up, o.out);
    if (o.gate) {
      want_width(*o.gate, width(o.out));
      r.gate = read(*o.gate);
    }
    r.up = read(o.up);
    r.out = write(o.out);
    return r;
  }

  void want_gate(op::Activation activation, bool has_gate) const {
    if (has_gate == (activation != op::Activation::ReluSquared)) return;
    fail(has_gate ? "the activation has no gate" : "the activation needs a gate");
  }

  op::Moe<int> resolve(const op::Moe<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_gate(o.activation, o.gate.has_value());
    if (o.gate_bias && !o.gate) fail("a bias of the gate needs a gate");
    if (o.num_experts < 1 || o.num_experts >= kMaxSize) fail("num_experts must be at least 1");
    if (o.num_experts_per_token < 1 || o.num_experts_per_token > o.num_experts) {
      fail("num_experts_per_token must be from 1 to num_experts");
    }
    check_groups(o);
    want_finite(o.share_scale, "share_scale");
    want_width(o.logits, o.num_experts);
    want_different(o.logits, o.out);
    const int64_t rows = width(o.out);
    // This makes every expert a range of panels.
    for (const int64_t each : {o.expert_width, rows}) {
      if (each < 1 || each >= kMaxSize || each % kPanelRows != 0) {
        fail("experts have " + std::to_string(each) + " rows, which must be a multiple of " +
             std::to_string(kPanelRows));
      }
    }
    const int64_t own = own_expert_width(o);
    r.gate = weight(o.gate, {o.num_experts, own, width(o.x)});
    r.up = weight(o.up, {o.num_experts, own, width(o.x)});
    r.down = weight(o.down, {o.num_experts, rows, o.expert_width});
    r.gate_bias = weight(o.gate_bias, {o.num_experts, own});
    r.up_bias = weight(o.up_bias, {o.num_experts, own});
    r.down_bias = weight(o.down_bias, {o.num_experts, rows});
    r.e_score_correction_bias = weight(o.e_score_correction_bias, {o.num_experts});
    r.expert_scale = weight(o.expert_scale, {o.num_experts});
    r.x = read(o.x);
    r.logits = read(o.logits);
    r.out = write(o.out);
    return r;
  }

  // The number of rows of `gate` and `up` of an expert that the program has.
  int64_t own_expert_width(const op::Moe<Name>& o) const {
    if (o.expert_widths.empty()) return o.expert_width;
    want_members(o.expert_widths.size(), "expert_widths");
    int64_t sum = 0;
    for (const int64_t each : o.expert_widths) {
      if (each < 1 || each >= kMaxSize || each % kPanelRows != 0) {
        fail("expert_widths must be multiples of " + std::to_string(kPanelRows));
      }
      sum += each;
    }
    if (sum != o.expert_width) fail("the sum of expert_widths is not expert_width");
    return o.expert_widths[static_cast<size_t>(spec_.member)];
  }

  void check_groups(const op::Moe<Name>& o) const {
    if (o.num_groups < 1 || o.num_experts % o.num_groups != 0) {
      fail("num_groups does not divide num_experts");
    }
    if (o.num_groups_used < 1 || o.num_groups_used > o.num_groups) {
      fail("num_groups_used must be from 1 to num_groups");
    }
    const int64_t group_size = o.num_experts / o.num_groups;
    if (o.num_groups > 1 && group_size < 2) fail("a group must have at least 2 experts");
    if (o.num_experts_per_token > o.num_groups_used * group_size) {
      fail("the groups used have fewer experts than num_experts_per_token");
    }
  }

  op::SigmoidGate<int> resolve(const op::SigmoidGate<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_different(o.x, o.gate);
    if (width(o.gate) != 1) want_width(o.gate, width(o.x));
    r.gate = read(o.gate);
    r.x = read(o.x);
    return r;
  }

  op::Scale<int> resolve(const op::Scale<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_finite(o.factor, "factor");
    r.x = read(o.x);
    return r;
  }

  op::Multiply<int> resolve(const op::Multiply<Name>& o) {
    auto r = op::copy_values<int>(o);
    const bool is_scalar = spec_.weights[find_weight(o.weight)].shape == std::vector<int64_t>{1};
    r.weight = weight(o.weight, {is_scalar ? 1 : width(o.x)});
    r.x = read(o.x);
    return r;
  }

  op::Add<int> resolve(const op::Add<Name>& o) {
    auto r = op::copy_values<int>(o);
    want_finite(o.scale, "scale");
    want_width(o.y, width(o.x));
    r.x = read(o.x);
    r.y = read(o.y);
    return r;
  }

  op::Head<int> resolve(const op::Head<Name>& o) {
    auto r = op::copy_values<int>(o);
    if (o.vocab_size != spec_.vocab_size) fail("vocab_size is not the program's");
    want_finite(o.scale, "scale");
    want_softcap(o.softcap);
    r.weight = weight(o.weight, {own_rows(o.bounds, spec_.vocab_size), width(o.x)});
    r.x = read(o.x);
    return r;
  }

  void check_ends() const {
    const size_t num_ops = spec_.ops.size();
    if (num_ops == 0 && (spec_.has_embedding || spec_.has_head)) {
      throw Error("the program has no ops, but an embedding or a head");
    }
    if (spec_.has_embedding && !std::holds_alternative<op::Embed<Name>>(spec_.ops.front())) {
      throw Error("a program with the embedding must begin with Embed");
    }
    for (size_t i = 0; i < num_ops; ++i) {
      const bool is_head = std::holds_alternative<op::Head<Name>>(spec_.ops[i]);
      if (is_head != (spec_.has_head && i == num_ops - 1)) {
        throw Error("a program ends with Head if it has the head, and has it nowhere else");
      }
    }
    if (!spec_.has_head && !written_[hidden_]) throw Error("register 'hidden' is never written");
    for (size_t i = 0; i < weight_used_.size(); ++i) {
      if (!weight_used_[i]) throw Error("weight '" + spec_.weights[i].name + "' is never used");
    }
    for (size_t i = 0; i < cache_filled_.size(); ++i) {
      if (!cache_filled_[i]) throw Error("cache " + std::to_string(i) + " is never used");
    }
    for (size_t i = 0; i < state_used_.size(); ++i) {
      if (!state_used_[i]) throw Error("state " + std::to_string(i) + " is never used");
    }
  }

  const ProgramSpec& spec_;
  std::unordered_map<std::string, int> registers_;
  std::unordered_map<std::string, int> weights_;
  std::vector<bool> written_;
  std::vector<bool> weight_used_;
  std::vector<bool> cache_filled_;
  std::vector<bool> state_used_;
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

Program::Rows Program::head_rows() const {
  const auto& head = std::get<op::Head<int>>(ops_.back());
  if (head.bounds.empty()) return {0, head.vocab_size};
  const auto member = static_cast<size_t>(spec_.member);
  return {head.bounds[member], head.bounds[member + 1]};
}

int64_t Program::max_width() const {
  int64_t width = 0;
  for (const Register& reg : spec_.registers) width = std::max(width, reg.width);
  return width;
}

}  // namespace potluck
