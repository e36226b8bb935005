#include "program/stage.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "program/error.h"

namespace potluck {
namespace {

uint64_t logits_bytes(const Program& program, int64_t max_step_tokens) {
  if (!program.has_logits()) return 0;
  const int64_t rows = std::min(max_step_tokens, Executor::kMaxHeadRows);
  const int64_t columns =
      program.is_led() ? program.head_rows().count() : program.spec().vocab_size;
  return static_cast<uint64_t>(rows * columns) * sizeof(float);
}

bool samples(const Program& program) { return program.has_logits() && !program.is_led(); }

BatchLimits make_limits(const Program& program, int64_t num_blocks, int64_t num_states,
                        int64_t max_step_tokens) {
  // Above these limits, products of sizes could overflow.
  constexpr int64_t kMaxBlocks = int64_t{1} << 28;
  constexpr int64_t kMaxStates = int64_t{1} << 16;
  constexpr int64_t kMaxTokens = int64_t{1} << 20;
  if (num_blocks < 0 || num_blocks > kMaxBlocks) {
    throw Error("num_blocks is " + std::to_string(num_blocks) + ", but must be from 0 to 2^28");
  }
  if (num_states < 0 || num_states > kMaxStates) {
    throw Error("num_states is " + std::to_string(num_states) + ", but must be from 0 to 2^16");
  }
  if (max_step_tokens < 1 || max_step_tokens > kMaxTokens) {
    throw Error("max_step_tokens is " + std::to_string(max_step_tokens) +
                ", but must be from 1 to 2^20");
  }
  const ProgramSpec& spec = program.spec();
  return {max_step_tokens,
          spec.caches.empty() ? std::nullopt : std::optional<int64_t>(num_blocks),
          spec.states.empty() ? std::nullopt : std::optional<int64_t>(num_states),
          spec.context_tokens, spec.vocab_size};
}

void check_shape(const char* what, int64_t rows, int64_t columns, int64_t wanted_rows,
                 int64_t wanted_columns) {
  if (rows != wanted_rows || columns != wanted_columns) {
    throw Error(std::string(what) + " has shape [" + std::to_string(rows) + ", " +
                std::to_string(columns) + "], and [" + std::to_string(wanted_rows) + ", " +
                std::to_string(wanted_columns) + "] is needed");
  }
}

// The rows of a slice after which a token is sampled.
int64_t num_sampled_rows(const Slice& slice) {
  if (!slice.sample) return 0;
  return std::min(slice.num_drafts + 1, static_cast<int64_t>(slice.tokens.size()));
}

void check_masks_are_used(const Step& step, bool has_head) {
  if (!has_head && !step.masks.empty()) throw Error("a stage without the head takes no masks");
  for (const TokenMask& mask : step.masks) {
    const auto is_sampled = [&](const Slice& slice) {
      return slice.sequence_id == mask.sequence_id && slice.sample;
    };
    const auto slice = std::find_if(step.slices.begin(), step.slices.end(), is_sampled);
    if (slice == step.slices.end()) {
      throw Error("sequence " + std::to_string(mask.sequence_id) +
                  ": it has a mask and is not sampled");
    }
    if (mask.rows != num_sampled_rows(*slice)) {
      throw Error("sequence " + std::to_string(mask.sequence_id) + ": it has " +
                  std::to_string(mask.rows) + " masks, and " +
                  std::to_string(num_sampled_rows(*slice)) + " of its rows are sampled");
    }
  }
}

}  // namespace

// Marks the stage as busy during its lifetime.
class Stage::Call {
 public:
  explicit Call(Stage& stage) : stage_(stage) {
    if (stage_.busy_.exchange(true)) {
      throw Error("the stage is busy with a call from another thread");
    }
  }
  ~Call() { stage_.busy_.store(false); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Stage& stage_;
};

Stage::Stage(std::shared_ptr<const Program> program, const Kernels& kernels,
             std::shared_ptr<ThreadPool> pool, int64_t num_blocks, int64_t num_states,
             int64_t max_step_tokens, Arithmetic arithmetic)
    : program_(std::move(program)),
      pool_(std::move(pool)),
      limits_(make_limits(*program_, num_blocks, num_states, max_step_tokens)),
      weights_(program_->spec().weights),
      executor_(*program_, kernels, weights_, num_blocks, num_states, max_step_tokens,
                pool_->num_threads(), arithmetic),
      logits_(logits_bytes(*program_, max_step_tokens), Pages::Normal, "logits") {
  sampling_timer_.add_part(program_->ops().size(), program_->ops().size());
  if (samples(*program_)) {
    sampler_.emplace(program_->spec().vocab_size, kernels, pool_->num_threads());
  }
}

uint64_t Stage::cache_bytes(const Program& program, int64_t num_blocks, int64_t num_states) {
  make_limits(program, num_blocks, num_states, 1);
  return Executor::cache_bytes(program, num_blocks, num_states);
}

uint64_t Stage::scratch_bytes(const Program& program, int64_t max_step_tokens, int num_threads,
                              Arithmetic arithmetic) {
  make_limits(program, 0, 0, max_step_tokens);
  const ProgramSpec& spec = program.spec();
  return Executor::scratch_bytes(program, max_step_tokens, num_threads, arithmetic) +
         logits_bytes(program, max_step_tokens) +
         (samples(program) ? Sampler::scratch_bytes(spec.vocab_size, num_threads) : 0);
}

void Stage::begin_weight(const std::string& name, const std::vector<int64_t>& shape,
                         Format format) {
  const Call call(*this);
  weights_.begin(name, shape, format);
}

void Stage::write_rows(const std::string& name, int64_t start_row, int64_t end_row,
                       const uint8_t* data, uint64_t num_bytes) {
  const Call call(*this);
  weights_.write_rows(name, start_row, end_row, data, num_bytes, *pool_);
}

void Stage::finish_weight(const std::string& name) {
  const Call call(*this);
  weights_.finish(name);
}

void Stage::map_weight(const std::string& name, const std::vector<int64_t>& shape, Format format,
                       const uint8_t* data, uint64_t num_bytes,
                       std::shared_ptr<const void> owner) {
  const Call call(*this);
  weights_.map(name, shape, format, data, num_bytes, std::move(owner));
}

void Stage::read_blocks(const std::vector<int64_t>& blocks, uint8_t* out, uint64_t num_bytes) {
  const Call call(*this);
  check_blocks(blocks, num_bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    executor_.read_block(blocks[i], out + i * block_bytes());
  }
}

void Stage::write_blocks(const std::vector<int64_t>& blocks, const uint8_t* data,
                         uint64_t num_bytes) {
  const Call call(*this);
  check_blocks(blocks, num_bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    executor_.write_block(blocks[i], data + i * block_bytes());
  }
}

void Stage::check_blocks(const std::vector<int64_t>& blocks, uint64_t num_bytes) const {
  for (const int64_t block : blocks) {
    if (limits_.num_blocks && (block < 0 || block >= *limits_.num_blocks)) {
      throw Error("there is no cache block " + std::to_string(block) + " (there are " +
                  std::to_string(*limits_.num_blocks) + ")");
    }
  }
  if (num_bytes != blocks.size() * block_bytes()) {
    throw Error(std::to_string(num_bytes) + " bytes are not those of " +
                std::to_string(blocks.size()) + " cache blocks of " +
                std::to_string(block_bytes()));
  }
}

void Stage::read_states(const std::vector<int64_t>& states, uint8_t* out, uint64_t num_bytes) {
  const Call call(*this);
  check_states(states, num_bytes);
  for (size_t i = 0; i < states.size(); ++i) {
    executor_.states().read_slot(states[i], out + i * state_bytes());
  }
}

void Stage::write_states(const std::vector<int64_t>& states, const uint8_t* data,
                         uint64_t num_bytes) {
  const Call call(*this);
  check_states(states, num_bytes);
  for (size_t i = 0; i < states.size(); ++i) {
    executor_.states().write_slot(states[i], data + i * state_bytes());
  }
}

void Stage::check_states(const std::vector<int64_t>& states, uint64_t num_bytes) const {
  for (const int64_t state : states) {
    if (limits_.num_states && (state < 0 || state >= *limits_.num_states)) {
      throw Error("there is no state slot " + std::to_string(state) + " (there are " +
                  std::to_string(*limits_.num_states) + ")");
    }
  }
  if (num_bytes != states.size() * state_bytes()) {
    throw Error(std::to_string(num_bytes) + " bytes are not those of " +
                std::to_string(states.size()) + " state slots of " +
                std::to_string(state_bytes()));
  }
}

void Stage::time_ops() {
  const Call call(*this);
  executor_.timer().turn_on();
  sampling_timer_.turn_on();
}

Stage::Times Stage::times() {
  const Call call(*this);
  return {executor_.timer().parts(), sampling_timer_.parts().front().seconds};
}

Batch Stage::check(const Step& step, const std::optional<MatrixView>& hidden_in) const {
  weights_.check_complete();
  Batch batch(step.slices, limits_);
  check_copies(step.copies, limits_);
  check_state_copies(step.state_copies, limits_);
  const ProgramSpec& spec = program_->spec();
  if (hidden_in.has_value() == spec.has_embedding) {
    throw Error(spec.has_embedding ? "a stage with the embedding takes no hidden states"
                                   : "a stage without the embedding needs hidden states");
  }
  if (hidden_in) {
    check_shape("hidden", hidden_in->rows, hidden_in->columns, batch.num_tokens(),
                spec.hidden_size);
  }
  if (program_->is_part() && step.exchange == nullptr && batch.num_tokens() != 0) {
    throw Error("the stage is for a member of a group, and has no exchange with the others");
  }
  if (spec.has_head && !program_->has_logits() && !batch.wanted().empty()) {
    throw Error("the model has no head, and so no logits");
  }
  if (sampler_) sampler_->check_openings(step.opened);
  if (spec.has_head && !program_->is_led()) pooler_.check(batch);
  return batch;
}

// All slices have passed the checks. Members of a group decide based on what all of them know.
std::vector<bool> Stage::find_dead(const Step& step, const Batch& batch) const {
  std::vector<bool> is_dead(step.slices.size(), false);
  if (!sampler_ || program_->is_part()) return is_dead;
  for (const WantedRow& wanted : batch.wanted()) {
    if (!wanted.draft) continue;
    const auto is_it = [&](const Slice& each) { return each.sequence_id == wanted.sequence_id; };
    const auto slice = std::find_if(step.slices.begin(), step.slices.end(), is_it);
    const auto num_tokens = static_cast<int64_t>(slice->tokens.size());
    if (slice->num_drafts < num_tokens || wanted.next_position != slice->start_position + 1) {
      continue;
    }
    is_dead[static_cast<size_t>(slice - step.slices.begin())] =
        sampler_->is_open(wanted.sequence_id) && !sampler_->is_followed(wanted);
  }
  return is_dead;
}

void Stage::compute(const Step& step, const Batch& batch,
                    const std::optional<MatrixView>& hidden_in, const std::vector<bool>& is_dead,
                    ThreadPool::Session& session) {
  open(step);
  executor_.copy_blocks(step.copies);
  executor_.copy_states(step.state_copies, session);
  if (hidden_in) {
    const float* rows = hidden_in->data;
    float* out = executor_.hidden();
    for (size_t i = 0; i < step.slices.size(); ++i) {
      const auto count = static_cast<int64_t>(step.slices[i].tokens.size()) * hidden_in->columns;
      if (!is_dead[i]) out = std::copy_n(rows, count, out);
      rows += count;
    }
  }
  executor_.run(batch, step.exchange, session);
}

void Stage::open(const Step& step) {
  if (sampler_) sampler_->open(step.opened);
  if (program_->is_part() && program_->has_logits()) greedy_rows_.open(step.opened);
}

void Stage::close(const Step& step) {
  for (const int64_t id : step.closed) {
    if (sampler_) sampler_->close(id);
    pooler_.close(id);
    greedy_rows_.close(id);
  }
}

StepOutput Stage::step(const Step& step, std::optional<MatrixView> hidden_in,
                       std::optional<MutableMatrixView> hidden_out) {
  const Call call(*this);
  Batch batch = check(step, hidden_in);
  const ProgramSpec& spec = program_->spec();
  if (program_->is_led()) {
    if (hidden_out) throw Error("a stage that another member of its group leads gives nothing");
  } else if (hidden_out.has_value() == spec.has_head) {
    throw Error(spec.has_head ? "a stage with the head gives no hidden states"
                              : "a stage without the head needs room for hidden states");
  }
  if (hidden_out) {
    check_shape("the output", hidden_out->rows, hidden_out->columns, batch.num_tokens(),
                spec.hidden_size);
  }
  check_masks_are_used(step, spec.has_head);
  if (program_->is_part() && !step.masks.empty()) check_masks_are_known(step);
  if (sampler_) {
    sampler_->check_masks(step.masks);
    for (const WantedRow& wanted : batch.wanted()) {
      const auto is_it = [&](const Opening& o) { return o.sequence_id == wanted.sequence_id; };
      if (!sampler_->is_open(wanted.sequence_id) &&
          std::none_of(step.opened.begin(), step.opened.end(), is_it)) {
        throw Error("sequence " + std::to_string(wanted.sequence_id) +
                    ": it is not open for sampling");
      }
    }
  }

  // A slice that consists of drafts and starts with a wrong one has no results, and what it would
  // store in the cache has no meaning.
  const std::vector<bool> is_dead = find_dead(step, batch);
  if (std::find(is_dead.begin(), is_dead.end(), true) != is_dead.end()) {
    std::vector<Slice> live;
    for (size_t i = 0; i < is_dead.size(); ++i) {
      if (!is_dead[i]) live.push_back(step.slices[i]);
    }
    batch = Batch(live, limits_);
  }

  ThreadPool::Session session(*pool_);
  compute(step, batch, hidden_in, is_dead, session);
  if (hidden_out) {
    std::copy_n(executor_.hidden(), hidden_out->rows * hidden_out->columns, hidden_out->data);
    return {};
  }
  if (program_->is_led()) {
    if (spec.has_head) add_logits(step, batch, session);
    close(step);
    return {};
  }
  StepOutput output;
  std::exception_ptr failure;
  try {
    output.vectors =
        pooler_.pool(batch, executor_.head_input(), program_->width(program_->head_input()));
  } catch (const NonFiniteError&) {
    failure = std::current_exception();
  }
  if (sampler_ && (!failure || program_->is_part())) {
    output.sampled = sample(step, batch, failure, session);
  }
  if (failure) std::rethrow_exception(failure);
  close(step);
  return output;
}

std::vector<SampledToken> Stage::sample(const Step& step, const Batch& batch,
                                        std::exception_ptr& failure,
                                        ThreadPool::Session& session) {
  auto* logits = reinterpret_cast<float*>(logits_.data());
  const std::vector<WantedRow>& wanted = batch.wanted();
  std::vector<SampledToken> sampled;
  Sampler::Recording recording(*sampler_);
  size_t next = 0;
  while (next < wanted.size()) {
    // As many rows as the head computes at once, without drafts known to be wrong and everything
    // after them; except in a group, whose other members do not know it.
    std::vector<WantedRow> rows;
    std::optional<int64_t> given_up;
    while (next < wanted.size() && rows.size() < static_cast<size_t>(Executor::kMaxHeadRows)) {
      const WantedRow& row = wanted[next++];
      if (row.sequence_id == given_up) continue;
      const bool is_known = rows.empty() || rows.back().sequence_id != row.sequence_id;
      if (!program_->is_part() && is_known && !sampler_->is_followed(row)) {
        given_up = row.sequence_id;
      } else {
        rows.push_back(row);
      }
    }
    if (rows.empty()) break;
    const auto count = static_cast<int64_t>(rows.size());
    executor_.head(rows.data(), count, greedy_rows_.of(rows.data(), count), logits, step.exchange,
                   session);
    if (failure) continue;
    sampling_timer_.start();
    try {
      auto chosen =
          sampler_->sample(rows.data(), rows.data() + rows.size(), logits, step.masks, session);
      for (SampledToken& token : chosen) sampled.push_back(std::move(token));
    } catch (const NonFiniteError&) {
      failure = std::current_exception();
      if (!program_->is_part()) return {};
    }
    sampling_timer_.add_to(0);
  }
  if (!failure) recording.keep();
  return sampled;
}

// The caller's part of the logits that the leader needs.
void Stage::add_logits(const Step& step, const Batch& batch, ThreadPool::Session& session) {
  auto* logits = reinterpret_cast<float*>(logits_.data());
  const auto num_wanted = static_cast<int64_t>(batch.wanted().size());
  for (int64_t begin = 0; begin < num_wanted; begin += Executor::kMaxHeadRows) {
    const int64_t count = std::min(num_wanted - begin, Executor::kMaxHeadRows);
    const WantedRow* rows = batch.wanted().data() + begin;
    executor_.head(rows, count, greedy_rows_.of(rows, count), logits, step.exchange, session);
  }
}

// The other members do not see masks: they would send too few logits.
void Stage::check_masks_are_known(const Step& step) const {
  GreedyRows greedy = greedy_rows_;
  greedy.open(step.opened);
  for (const TokenMask& mask : step.masks) {
    if (greedy.has(mask.sequence_id)) {
      throw Error("sequence " + std::to_string(mask.sequence_id) +
                  ": it has a mask, and was opened without a grammar");
    }
  }
}

void Stage::logits(const Step& step, std::optional<MatrixView> hidden_in, MutableMatrixView out) {
  const Call call(*this);
  const Batch batch = check(step, hidden_in);
  if (!program_->has_logits()) throw Error("this stage has no logits");
  const auto num_wanted = static_cast<int64_t>(batch.wanted().size());
  check_shape("the output", out.rows, out.columns, program_->is_led() ? 0 : num_wanted,
              program_->spec().vocab_size);

  ThreadPool::Session session(*pool_);
  compute(step, batch, hidden_in, std::vector<bool>(step.slices.size(), false), session);
  auto* part = reinterpret_cast<float*>(logits_.data());  // of a stage that is led
  for (int64_t begin = 0; begin < num_wanted; begin += Executor::kMaxHeadRows) {
    const int64_t count = std::min(num_wanted - begin, Executor::kMaxHeadRows);
    executor_.head(batch.wanted().data() + begin, count,
                   std::vector<bool>(static_cast<size_t>(count), false),
                   program_->is_led() ? part : out.data + begin * out.columns, step.exchange,
                   session);
  }
  close(step);
}

}  // namespace potluck
