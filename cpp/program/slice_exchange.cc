#include "program/slice_exchange.h"

#include <algorithm>

namespace potluck {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr int64_t kCopyWork = 1;

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Size of kGroupColumns columns of a row. Integers are sent without their sums, which are quickly
// recomputed.
uint64_t group_bytes(SliceForm form) {
  switch (form) {
    case SliceForm::Integers: return kGroupColumns + sizeof(float);
    case SliceForm::Bf16: return kGroupColumns * sizeof(uint16_t);
    case SliceForm::Floats: break;
  }
  return kGroupColumns * sizeof(float);
}

int32_t sum_of(const int8_t* q) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroupColumns; ++i) sum += q[i];
  return sum;
}

}  // namespace

bool has_whole_groups(const std::vector<int64_t>& widths) {
  return std::all_of(widths.begin(), widths.end(),
                     [](int64_t width) { return width % kGroupColumns == 0; });
}

uint64_t SliceExchange::message_bytes(int64_t num_rows, int64_t num_columns, int64_t num_members) {
  return static_cast<uint64_t>(num_rows) * static_cast<uint64_t>(num_columns) * sizeof(float) +
         static_cast<uint64_t>(num_members) * kAlignment;
}

void SliceExchange::begin(const std::vector<int64_t>& widths,
                          const std::vector<FormedRows>& ranges, const MutableActivations& out) {
  widths_ = widths;
  ranges_ = ranges;
  out_ = out;
  columns_before_.clear();
  uint64_t bytes = 0;
  for (const FormedRows& range : ranges) {
    columns_before_.push_back(bytes);
    bytes += static_cast<uint64_t>(range.end - range.begin) * group_bytes(range.form);
  }
  first_columns_.clear();
  starts_.clear();
  sizes_.clear();
  width_ = 0;
  uint64_t start = 0;
  for (const int64_t width : widths) {
    first_columns_.push_back(width_);
    width_ += width;
    starts_.push_back(start);
    sizes_.push_back(bytes * static_cast<uint64_t>(width) / kGroupColumns);
    start += aligned(sizes_.back());
  }
  const size_t num_members = widths.size();
  const auto self = static_cast<size_t>(member_);
  sent_.assign(num_members, {});
  received_.assign(num_members, {});
  for (size_t m = 0; m < num_members; ++m) {
    if (m == self) continue;
    if (sizes_[self] != 0) sent_[m] = {messages_ + starts_[self], sizes_[self]};
    if (sizes_[m] != 0) received_[m] = {messages_ + starts_[m], sizes_[m]};
  }
}

void SliceExchange::put(int64_t row, const float* x) {
  size_t range = 0;
  while (row >= ranges_[range].end) ++range;
  const auto [begin, end, form] = ranges_[range];
  const int64_t columns = widths_[static_cast<size_t>(member_)];
  const int64_t first = row * width_ + first_columns_[static_cast<size_t>(member_)];
  uint8_t* const message = place(member_, range);
  const int64_t index = row - begin;
  switch (form) {
    case SliceForm::Floats: {
      std::copy_n(x, columns, out_.x + first);
      std::copy_n(x, columns, reinterpret_cast<float*>(message) + index * columns);
      break;
    }
    case SliceForm::Bf16: {
      kernels_.round_bf16(x, columns, out_.bf16 + first);
      std::copy_n(out_.bf16 + first, columns,
                  reinterpret_cast<uint16_t*>(message) + index * columns);
      break;
    }
    case SliceForm::Integers: {
      const int64_t groups = columns / kGroupColumns, first_group = first / kGroupColumns;
      kernels_.quantize(x, 1, columns, out_.q + first, out_.scales + first_group,
                        out_.sums + first_group);
      std::copy_n(out_.q + first, columns, reinterpret_cast<int8_t*>(message) + index * columns);
      std::copy_n(out_.scales + first_group, groups,
                  reinterpret_cast<float*>(message + (end - begin) * columns) + index * groups);
      break;
    }
  }
}

void SliceExchange::take_all(ThreadPool::Session& session) {
  const size_t num_members = widths_.size();
  const auto self = static_cast<size_t>(member_);
  for (size_t range = 0; range < ranges_.size(); ++range) {
    const int64_t first_row = ranges_[range].begin;
    parallel_ranges(session, ranges_[range].end - first_row, 1, kCopyWork * width_,
                    [&](int64_t begin, int64_t end, int) {
                      for (size_t m = 0; m < num_members; ++m) {
                        if (m == self || widths_[m] == 0) continue;
                        for (int64_t row = begin; row < end; ++row) {
                          take(static_cast<int64_t>(m), range, first_row + row);
                        }
                      }
                    });
  }
}

// Copies the columns of a row that were received from another member to their place.
void SliceExchange::take(int64_t member, size_t range, int64_t row) const {
  const auto [begin, end, form] = ranges_[range];
  const int64_t columns = widths_[static_cast<size_t>(member)];
  const int64_t first = row * width_ + first_columns_[static_cast<size_t>(member)];
  const uint8_t* const message = place(member, range);
  const int64_t index = row - begin;
  switch (form) {
    case SliceForm::Floats: {
      std::copy_n(reinterpret_cast<const float*>(message) + index * columns, columns,
                  out_.x + first);
      break;
    }
    case SliceForm::Bf16: {
      std::copy_n(reinterpret_cast<const uint16_t*>(message) + index * columns, columns,
                  out_.bf16 + first);
      break;
    }
    case SliceForm::Integers: {
      const int64_t groups = columns / kGroupColumns, first_group = first / kGroupColumns;
      const int8_t* q = reinterpret_cast<const int8_t*>(message) + index * columns;
      std::copy_n(q, columns, out_.q + first);
      std::copy_n(reinterpret_cast<const float*>(message + (end - begin) * columns) +
                      index * groups,
                  groups, out_.scales + first_group);
      for (int64_t g = 0; g < groups; ++g) {
        out_.sums[first_group + g] = sum_of(q + g * kGroupColumns);
      }
      break;
    }
  }
}

}  // namespace potluck
