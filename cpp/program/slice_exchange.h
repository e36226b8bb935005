// Exchanges columns of rows among the members of a group: each has its own columns, and receives
// those of the others, in the form in which they are multiplied.
//
// Integers and bf16 are computed from float32 column by column, or from whole groups of columns:
// they are bit-identical whether one member converts a whole row or every member its own columns.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/exchange.h"
#include "program/thread_pool.h"

namespace potluck {

enum class SliceForm : uint8_t { Floats, Bf16, Integers };

// Whether rows with this division can be exchanged as integers: groups of columns must be whole.
bool has_whole_groups(const std::vector<int64_t>& widths);

// Rows [begin, end) in one form.
struct FormedRows {
  int64_t begin;
  int64_t end;
  SliceForm form;
};

// The destination of whole rows, as writable Activations. Forms that are not used may be null.
struct MutableActivations {
  float* x;
  int8_t* q;
  float* scales;
  int32_t* sums;
  uint16_t* bf16;
};

class SliceExchange {
 public:
  // The size of the messages of all members together, for rows with `num_columns` in total and in
  // any form.
  static uint64_t message_bytes(int64_t num_rows, int64_t num_columns, int64_t num_members);

  // The references, and the memory at `messages` for the largest exchange, aligned to 64, must
  // outlive it.
  SliceExchange(const Kernels& kernels, int64_t member, uint8_t* messages)
      : kernels_(kernels), member_(member), messages_(messages) {}

  uint8_t* memory() const { return messages_; }

  // Begins an exchange of rows in which member m has `widths[m]` columns, concatenated in the order
  // of members. `ranges` are all rows in order. `out` receives whole rows. Widths are multiples of
  // kGroupColumns if integers are used.
  void begin(const std::vector<int64_t>& widths, const std::vector<FormedRows>& ranges,
             const MutableActivations& out);

  // Provides the caller's own columns of a row. May be called for different rows by different
  // threads at once.
  void put(int64_t row, const float* x);

  // Exchanges the rows after all were provided.
  void run(Exchange& exchange, ThreadPool::Session& session) {
    exchange.exchange(sent_, received_);
    take_all(session);
  }
  // The same in two steps: returns the data to exchange, and then copies the received data to its
  // place.
  const std::vector<SentBytes>& sent() const { return sent_; }
  const std::vector<ReceivedBytes>& received() const { return received_; }
  void take_all(ThreadPool::Session& session);

 private:
  // The offset of a range's rows in a member's message.
  uint8_t* place(int64_t member, size_t range) const {
    return messages_ + starts_[static_cast<size_t>(member)] +
           columns_before_[range] * static_cast<uint64_t>(widths_[static_cast<size_t>(member)]) /
               kGroupColumns;
  }
  void take(int64_t member, size_t range, int64_t row) const;

  const Kernels& kernels_;
  const int64_t member_;
  uint8_t* const messages_;
  // Of the current exchange.
  std::vector<int64_t> widths_;
  std::vector<int64_t> first_columns_;  // by member
  std::vector<uint64_t> starts_;        // of the members' messages
  std::vector<uint64_t> sizes_;         // likewise
  std::vector<FormedRows> ranges_;
  std::vector<uint64_t> columns_before_;  // bytes of 32 columns of the rows before each range
  std::vector<SentBytes> sent_;
  std::vector<ReceivedBytes> received_;
  MutableActivations out_{};
  int64_t width_ = 0;
};

}  // namespace potluck
