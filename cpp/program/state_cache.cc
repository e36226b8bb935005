#include "program/state_cache.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "kernels/kernels.h"

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;  // a cache line, and the widest register

// Matrices [rows][columns] of `num_heads` heads, in strips.
int64_t strip_floats(int64_t num_heads, int64_t rows, int64_t columns) {
  return num_heads * num_state_strips(columns) * rows * 16;
}

int64_t num_floats(const Program& program, const op::CausalConv<int>& o) {
  return (o.kernel - 1) * program.width(o.x);
}
int64_t num_floats(const Program&, const op::GatedDelta<int>& o) {
  return strip_floats(o.num_heads, o.key_dim, o.value_dim);
}
int64_t num_floats(const Program&, const op::StateScan<int>& o) {
  return strip_floats(o.num_heads, o.state_dim, o.head_dim);
}

}  // namespace

StateLayout::StateLayout(const Program& program) : offsets(program.spec().states.size()) {
  std::vector<uint64_t> sizes(offsets.size());
  const auto set_size = [&](const auto* o) {
    if (o == nullptr) return;
    sizes[static_cast<size_t>(o->state_index)] =
        static_cast<uint64_t>(num_floats(program, *o)) * sizeof(float);
  };
  for (const op::Resolved& any : program.ops()) {
    set_size(std::get_if<op::CausalConv<int>>(&any));
    set_size(std::get_if<op::GatedDelta<int>>(&any));
    set_size(std::get_if<op::StateScan<int>>(&any));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets[i] = slot_bytes;
    slot_bytes += (sizes[i] + kAlignment - 1) / kAlignment * kAlignment;
  }
}

StateCache::StateCache(const Program& program, int64_t num_slots)
    : layout_(program), slots_(num_bytes(program, num_slots), Pages::Huge, "the states") {}

uint64_t StateCache::num_bytes(const Program& program, int64_t num_slots) {
  return static_cast<uint64_t>(num_slots) * StateLayout(program).slot_bytes;
}

void StateCache::copy_slot(int64_t source, int64_t target, ThreadPool::Session& session) {
  // Worth a thread from a few microseconds on: reading and writing a line takes about 4 ns.
  constexpr int64_t kLineWork = 128;
  const uint8_t* from = at(source);
  uint8_t* to = at(target);
  const auto num_lines = static_cast<int64_t>(layout_.slot_bytes / kAlignment);
  parallel_ranges(session, num_lines, 1, kLineWork, [&](int64_t begin, int64_t end, int) {
    const uint64_t first = static_cast<uint64_t>(begin) * kAlignment;
    std::memcpy(to + first, from + first, static_cast<uint64_t>(end - begin) * kAlignment);
  });
}

void StateCache::read_slot(int64_t slot, uint8_t* out) const {
  std::memcpy(out, at(slot), layout_.slot_bytes);
}

void StateCache::write_slot(int64_t slot, const uint8_t* data) {
  std::memcpy(at(slot), data, layout_.slot_bytes);
}

}  // namespace potluck
