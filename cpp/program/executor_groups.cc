// The executor's exchanges with the other members of a group.
#include "program/executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "program/candidates.h"
#include "program/op_work.h"

namespace potluck {
namespace {

// A member's summary of its part of a row's logits.
struct Largest {
  float logit;    // NaN if not all are finite
  int32_t token;  // the first token with that logit
};

Largest largest_of(const float* logits, int64_t count, int64_t first_token,
                   ThreadPool::Session& session) {
  const int64_t blocks = BlockedLogits::num_blocks(count);
  std::vector<float> maxima(static_cast<size_t>(blocks));
  parallel_ranges(session, blocks, 1, BlockedLogits::kBlock,
                  [&](int64_t begin, int64_t end, int) {
                    find_maxima(logits, count, begin, end, maxima.data());
                  });
  const BlockedLogits blocked{logits, count, maxima.data()};
  if (!blocked.all_finite()) return {std::numeric_limits<float>::quiet_NaN(), 0};
  const int64_t token = blocked.argmax();
  return {logits[token], static_cast<int32_t>(first_token + token)};
}

// As if these were a row's logits: those of all other tokens are as low as possible.
void write_largest(const Largest& largest, float* logits, int64_t count) {
  std::fill_n(logits, count, -std::numeric_limits<float>::max());
  logits[largest.token] = largest.logit;
}

}  // namespace

// Sends logits to member 0: first the summaries of all rows of which the largest logit is
// requested, and then the others, row by row, to their final place.
void Executor::exchange_logits(const op::Head<int>& o, int64_t num_rows,
                               const std::vector<bool>& largest, float* logits,
                               Exchange& exchange, ThreadPool::Session& session) {
  const auto num_members = static_cast<size_t>(program_.spec().num_members);
  const Program::Rows own = program_.head_rows();
  const bool leads = !program_.is_led();
  const int64_t stride = leads ? o.vocab_size : own.count();
  std::vector<Largest> found;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (largest[static_cast<size_t>(i)]) {
      found.push_back(largest_of(logits + i * stride, own.count(), own.begin, session));
    }
  }
  if (!found.empty()) {
    std::vector<SentBytes> sent(num_members);
    std::vector<ReceivedBytes> received(num_members);
    std::vector<std::vector<Largest>> others(num_members, std::vector<Largest>(found.size()));
    const uint64_t num_bytes = found.size() * sizeof(Largest);
    if (leads) {
      for (size_t m = 1; m < num_members; ++m) {
        received[m] = {reinterpret_cast<uint8_t*>(others[m].data()), num_bytes};
      }
    } else {
      sent[0] = {reinterpret_cast<const uint8_t*>(found.data()), num_bytes};
    }
    exchange.exchange(sent, received);
    size_t at = 0;
    for (int64_t i = 0; leads && i < num_rows; ++i) {
      if (!largest[static_cast<size_t>(i)]) continue;
      Largest best = found[at];
      for (size_t m = 1; m < num_members; ++m) {
        const Largest& other = others[m][at];
        if (std::isnan(other.logit) || other.logit > best.logit) best = other;
      }
      if (best.token < 0 || best.token >= o.vocab_size) best = {NAN, 0};
      write_largest(best, logits + i * stride, o.vocab_size);
      ++at;
    }
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    if (largest[static_cast<size_t>(i)]) continue;
    float* row = logits + i * stride;
    std::vector<SentBytes> sent(num_members);
    std::vector<ReceivedBytes> received(num_members);
    for (size_t m = 1; leads && m < num_members; ++m) {
      received[m] = {reinterpret_cast<uint8_t*>(row + o.bounds[m]),
                     static_cast<uint64_t>(o.bounds[m + 1] - o.bounds[m]) * sizeof(float)};
    }
    if (!leads) {
      sent[0] = {reinterpret_cast<const uint8_t*>(row),
                 static_cast<uint64_t>(own.count()) * sizeof(float)};
    }
    exchange.exchange(sent, received);
  }
}

// Rows of all tokens, of which every member has some and sends them to all others, in order.
void Executor::run_op(const op::Embed<int>& o, const Batch& batch, ThreadPool::Session& session) {
  const Matrix& weight = weights_.matrix(o.weight);
  const auto embed = kernels_.embed[static_cast<int>(weight.format)];
  const int64_t columns = program_.width(o.out);
  const auto num_members = static_cast<size_t>(program_.spec().num_members);
  const auto self = static_cast<size_t>(program_.spec().member);
  std::vector<std::vector<int64_t>> tokens(num_members);  // the members that have the rows
  for (int64_t t = 0; t < batch.num_tokens(); ++t) {
    const auto after = std::upper_bound(o.bounds.begin(), o.bounds.end(), batch.rows()[t].token);
    tokens[static_cast<size_t>(after - o.bounds.begin()) - 1].push_back(t);
  }
  std::vector<SentBytes> sent(num_members);
  std::vector<ReceivedBytes> received(num_members);
  float* next = reinterpret_cast<float*>(messages_from(first_row_).memory());
  std::vector<float*> messages;
  for (const std::vector<int64_t>& each : tokens) {
    messages.push_back(next);
    next += static_cast<int64_t>(each.size()) * columns;
  }
  const auto count_of = [&](size_t m) { return static_cast<int64_t>(tokens[m].size()); };
  const auto bytes_of = [&](size_t m) {
    return static_cast<uint64_t>(count_of(m) * columns) * sizeof(float);
  };
  parallel_ranges(session, count_of(self), 1, kCopyWork * columns,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t t = tokens[self][static_cast<size_t>(i)];
                      embed(weight, batch.rows()[t].token - o.bounds[self], row(o.out, t));
                      std::copy_n(row(o.out, t), columns, messages[self] + i * columns);
                    }
                  });
  for (size_t m = 0; m < num_members; ++m) {
    if (m == self) continue;
    if (!tokens[self].empty()) {
      sent[m] = {reinterpret_cast<const uint8_t*>(messages[self]), bytes_of(self)};
    }
    if (!tokens[m].empty()) received[m] = {reinterpret_cast<uint8_t*>(messages[m]), bytes_of(m)};
  }
  exchange_->exchange(sent, received);
  for (size_t m = 0; m < num_members; ++m) {
    if (m == self) continue;
    for (int64_t i = 0; i < count_of(m); ++i) {
      std::copy_n(messages[m] + i * columns, columns,
                  row(o.out, tokens[m][static_cast<size_t>(i)]));
    }
  }
}

SliceForm Executor::slice_form(const Gather& gather, bool is_prefill) const {
  if (gather.is_read_otherwise || gather.matrices.empty()) return SliceForm::Floats;
  // One form that all matrices accept; for prompts and decodes, as they are in one place.
  SliceForm forms_of[2];
  for (const bool prefill : {false, true}) {
    std::optional<SliceForm> common;
    for (const int index : gather.matrices) {
      const Forms one = forms(weights_.matrix(index), prefill);
      SliceForm form = SliceForm::Floats;
      if (one.integers && has_whole_groups(gather.widths)) form = SliceForm::Integers;
      if (one.bf16) form = SliceForm::Bf16;
      if (common.value_or(form) != form) form = SliceForm::Floats;
      common = form;
    }
    if (*common == SliceForm::Floats) return SliceForm::Floats;
    forms_of[prefill] = *common;
  }
  return forms_of[is_prefill];
}

MutableActivations Executor::gathered(const Gather& gather, int64_t num_rows) {
  // In the memory of the register, which is large enough for all of them.
  const int64_t columns = program_.width(gather.out), groups = columns / kGroupColumns;
  uint8_t* memory = reinterpret_cast<uint8_t*>(register_data(gather.out));
  MutableActivations all{};
  all.x = reinterpret_cast<float*>(memory);
  all.q = reinterpret_cast<int8_t*>(memory);
  all.scales = reinterpret_cast<float*>(all.q + num_rows * columns);
  all.sums = reinterpret_cast<int32_t*>(all.scales + num_rows * groups);
  all.bf16 = reinterpret_cast<uint16_t*>(all.sums + num_rows * groups);
  return all;
}

void Executor::begin_gather(Part& part) {
  std::vector<FormedRows> ranges;
  for (const RowRange& range : part.batch.ranges()) {
    const SliceForm form = slice_form(*gather_, range.is_prefill);
    if (!ranges.empty() && ranges.back().form == form) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back({range.begin, range.end, form});
    }
  }
  part.slices.begin(gather_->widths, ranges, gathered(*gather_, part.batch.num_tokens()));
}

int64_t Executor::input_work(const op::AllGather<int>& o) const {
  return kNormWork * o.widths[static_cast<size_t>(program_.spec().member)];
}

void Executor::make_input(const op::AllGather<int>& o, const Batch&, int64_t t) {
  if (o.widths[static_cast<size_t>(program_.spec().member)] != 0) part_->slices.put(t, row(o.x, t));
}

void Executor::run_op(const op::AllGather<int>&, const Batch&, ThreadPool::Session& session) {
  SliceExchange& slices = part_->slices;
  if (queued_ == nullptr) return slices.run(*exchange_, session);
  part_->exchange = queued_->start(slices.sent(), slices.received());
}

}  // namespace potluck
