#include "program/read_ahead.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <variant>

namespace potluck {
namespace {

// A slice is read to its end even if the computation has overtaken it.
constexpr uint64_t kSliceBytes = uint64_t{1} << 20;
// Maximum number of waits per slice for a disk that reads at least 256 KiB ahead.
constexpr int64_t kMaxWaits = 4;

void add_weights(const op::Resolved& any, std::vector<int>& weights) {
  const auto add = [&weights](std::optional<int> weight) {
    if (weight) weights.push_back(*weight);
  };
  if (const auto* norm = std::get_if<op::RmsNorm<int>>(&any)) add(norm->weight);
  if (const auto* norm = std::get_if<op::LayerNorm<int>>(&any)) add(norm->weight);
  if (const auto* product = std::get_if<op::Multiply<int>>(&any)) add(product->weight);
  if (const auto* attention = std::get_if<op::Attention<int>>(&any)) add(attention->sinks);
  if (const auto* conv = std::get_if<op::CausalConv<int>>(&any)) {
    add(conv->weight);
    add(conv->bias);
  }
  if (const auto* delta = std::get_if<op::GatedDelta<int>>(&any)) {
    add(delta->rate);
    add(delta->decay_bias);
  }
  if (const auto* scan = std::get_if<op::StateScan<int>>(&any)) {
    add(scan->rate);
    add(scan->step_bias);
    add(scan->skip);
  }
  if (const auto* head = std::get_if<op::Head<int>>(&any)) add(head->weight);
  if (const auto* heads = std::get_if<op::HeadLinear<int>>(&any)) add(heads->weight);
  if (const auto* linear = std::get_if<op::Linear<int>>(&any)) {
    add(linear->weight);
    add(linear->bias);
  }
}

bool reads_matrix(const op::Resolved& any) {
  return std::holds_alternative<op::Linear<int>>(any) ||
         std::holds_alternative<op::HeadLinear<int>>(any) ||
         std::holds_alternative<op::Moe<int>>(any);
}

bool mixes_tokens(const op::Resolved& any) {
  return std::holds_alternative<op::Attention<int>>(any) ||
         std::holds_alternative<op::CausalConv<int>>(any) ||
         std::holds_alternative<op::GatedDelta<int>>(any) ||
         std::holds_alternative<op::StateScan<int>>(any);
}

// How often this thread has waited for a page.
int64_t num_waits() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

// Blocks that this process has read from disks, and pages that it had to wait for.
int64_t num_reads() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_inblock + usage.ru_majflt;
}

}  // namespace

ReadAhead::ReadAhead(const Program& program, const WeightStore& weights)
    : weights_(weights), layers_(1) {
  // Programs do not mark where layers begin, so a unit of reading extends from one attention, or
  // one op with a state, to the next. Among such ops with no matrices between them, the first one
  // counts.
  bool has_matrix = false;
  for (const op::Resolved& any : program.ops()) {
    layer_of_op_.push_back(static_cast<int64_t>(layers_.size()) - 1);
    add_weights(any, layers_.back());
    has_matrix = has_matrix || reads_matrix(any);
    if (!has_matrix || !mixes_tokens(any)) continue;
    layers_.emplace_back();
    has_matrix = false;
  }
}

ReadAhead::~ReadAhead() {
  if (!reader_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    layer_ = static_cast<int64_t>(layers_.size());  // so that the current read is abandoned
  }
  changed_.notify_one();
  reader_.join();
}

void ReadAhead::begin_step() {
  is_active_ = false;
  if (weights_.num_mapped_bytes() == 0) return;
  const int64_t now = num_reads();
  is_active_ = now != num_reads_;
  num_reads_ = now;
  if (!is_active_) return;
  if (!reader_.joinable()) reader_ = std::thread([this] { read(); });
  compute(0);
}

void ReadAhead::compute(int64_t layer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The computation has caught up, or the step is a new one.
    if (next_ < layer || layer == 0) next_ = layer;
    layer_ = layer;
  }
  changed_.notify_one();
}

void ReadAhead::read() {
  const auto num_layers = static_cast<int64_t>(layers_.size());
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return is_ending_ || next_ < std::min(layer_.load() + 2, num_layers);
    });
    if (is_ending_) return;
    const int64_t layer = next_++;
    lock.unlock();
    read_layer(layer);
    lock.lock();
  }
}

void ReadAhead::read_layer(int64_t layer) {
  for (const int index : layers_[static_cast<size_t>(layer)]) {
    if (!weights_.is_mapped(index)) continue;
    for (uint64_t offset = 0; offset < weights_.mapped_bytes(index); offset += kSliceBytes) {
      if (layer_.load(std::memory_order_relaxed) > layer) return;
      read_slice(index, offset);
    }
  }
}

void ReadAhead::read_slice(int index, uint64_t offset) {
  // Page faults read large pieces if the disk is configured for much read-ahead, with few waits and
  // little work. If it reads 128 KiB at a time, requests keep the disk busier, at a higher CPU
  // cost.
  if (!asks_) {
    const int64_t before = num_waits();
    const bool can_fault_in = weights_.fault_in(index, offset, kSliceBytes);
    asks_ = !can_fault_in || num_waits() - before > kMaxWaits;
  }
  if (asks_) weights_.ask_for(index, offset, kSliceBytes);
}

}  // namespace potluck
