// The thread pool, the stage and the sampler.
#include "bind/engine_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <utility>

#include "bind/find_format.h"
#include "bind/python_exchange.h"
#include "dispatch/table.h"
#include "program/error.h"
#include "program/sampler.h"
#include "program/stage.h"
#include "program/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

using InMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pairs = std::vector<std::pair<int64_t, int64_t>>;
using OutBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Mask = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Masks = std::vector<std::pair<int64_t, Mask>>;

// Valid as long as `masks` is.
std::vector<TokenMask> view(const Masks& masks) {
  std::vector<TokenMask> views;
  for (const auto& [sequence_id, mask] : masks) {
    views.push_back({sequence_id, mask.data(), static_cast<int64_t>(mask.shape(0)),
                     static_cast<int64_t>(mask.shape(1))});
  }
  return views;
}
MatrixView view(const InMatrix& m) {
  return {m.data(), static_cast<int64_t>(m.shape(0)), static_cast<int64_t>(m.shape(1))};
}
MutableMatrixView view(const OutMatrix& m) {
  return {m.data(), static_cast<int64_t>(m.shape(0)), static_cast<int64_t>(m.shape(1))};
}
std::optional<MatrixView> view(const std::optional<InMatrix>& m) {
  if (!m) return std::nullopt;
  return view(*m);
}
std::optional<MutableMatrixView> view(const std::optional<OutMatrix>& m) {
  if (!m) return std::nullopt;
  return view(*m);
}

const Kernels& find_kernels(const std::string& isa) {
  const Kernels* kernels = kernels_for(isa.c_str());
  if (kernels == nullptr) throw Error("no kernels for '" + isa + "' can run here");
  return *kernels;
}

Arithmetic as_arithmetic(bool is_fast) { return is_fast ? Arithmetic::Fast : Arithmetic::Exact; }

std::vector<BlockCopy> as_copies(const Pairs& pairs) {
  std::vector<BlockCopy> copies;
  for (const auto& [source, target] : pairs) copies.push_back({source, target});
  return copies;
}

std::vector<StateCopy> as_state_copies(const Pairs& pairs) {
  std::vector<StateCopy> copies;
  for (const auto& [source, target] : pairs) copies.push_back({source, target});
  return copies;
}

void check_num_threads(int num_threads) {
  if (num_threads < 1) throw Error("num_threads must be at least 1");
}

void bind_values(nb::module_& m) {
  nb::enum_<Pooling>(m, "Pooling")
      .value("LAST", Pooling::Last)
      .value("CLS", Pooling::Cls)
      .value("MEAN", Pooling::Mean);
  nb::class_<Slice>(m, "Slice")
      .def(nb::init<int64_t, std::vector<int64_t>, int64_t, std::vector<int64_t>, bool,
                    std::optional<int64_t>, std::optional<int64_t>, std::optional<Pooling>, bool,
                    std::optional<int64_t>, int64_t>(),
           nb::kw_only(), "sequence_id"_a, "tokens"_a, "start_position"_a, "block_table"_a,
           "sample"_a, "score_from"_a = nb::none(), "next_token"_a = nb::none(),
           "pooling"_a = nb::none(), "ends_pooling"_a = false, "state"_a = nb::none(),
           "num_drafts"_a = 0);
  nb::class_<SamplingParams>(m, "SamplingParams")
      .def(nb::init<float, std::optional<int64_t>, float, float, float, float, float,
                    std::vector<std::pair<int64_t, float>>, uint64_t, bool, int64_t>(),
           nb::kw_only(), "temperature"_a, "top_k"_a.none(), "top_p"_a, "min_p"_a,
           "repetition_penalty"_a, "frequency_penalty"_a, "presence_penalty"_a, "logit_bias"_a,
           "seed"_a, "logprobs"_a, "top_logprobs"_a);
  nb::class_<Opening>(m, "Opening")
      .def(nb::init<int64_t, SamplingParams, std::vector<int64_t>, std::vector<int64_t>,
                    bool>(),
           nb::kw_only(), "sequence_id"_a, "sampling"_a, "prompt_tokens"_a, "output_tokens"_a,
           "has_grammar"_a = false);
  nb::class_<TokenLogprob>(m, "TokenLogprob")
      .def_ro("token", &TokenLogprob::token)
      .def_ro("logprob", &TokenLogprob::logprob);
  nb::class_<SampledToken>(m, "SampledToken")
      .def_ro("sequence_id", &SampledToken::sequence_id)
      .def_ro("position", &SampledToken::position)
      .def_ro("token", &SampledToken::token)
      .def_ro("logprob", &SampledToken::logprob)
      .def_ro("top", &SampledToken::top);
}

void bind_stage(nb::module_& m) {
  nb::class_<PooledVector>(m, "PooledVector")
      .def_ro("sequence_id", &PooledVector::sequence_id)
      .def_ro("position", &PooledVector::position)
      .def_ro("token", &PooledVector::token)
      .def_prop_ro("values", [](const PooledVector& vector) {
        return nb::bytes(vector.values.data(), vector.values.size() * sizeof(float));
      });
  nb::class_<TimedOps>(m, "TimedOps")
      .def_ro("first_op", &TimedOps::first_op)
      .def_ro("end_op", &TimedOps::end_op)
      .def_ro("seconds", &TimedOps::seconds);
  nb::class_<Stage>(m, "Stage")
      .def(nb::new_([](std::shared_ptr<const Program> program, const std::string& isa,
                       std::shared_ptr<ThreadPool> pool, int64_t num_blocks, int64_t num_states,
                       int64_t max_step_tokens, bool is_fast) {
             return std::make_unique<Stage>(std::move(program), find_kernels(isa), std::move(pool),
                                            num_blocks, num_states, max_step_tokens,
                                            as_arithmetic(is_fast));
           }),
           nb::kw_only(), "program"_a, "isa"_a, "pool"_a, "num_blocks"_a, "num_states"_a,
           "max_step_tokens"_a, "is_fast"_a)
      .def_static("cache_bytes", &Stage::cache_bytes, nb::kw_only(), "program"_a, "num_blocks"_a,
                  "num_states"_a)
      .def_static(
          "scratch_bytes",
          [](const Program& program, int64_t max_step_tokens, int num_threads, bool is_fast) {
            check_num_threads(num_threads);
            return Stage::scratch_bytes(program, max_step_tokens, num_threads,
                                        as_arithmetic(is_fast));
          },
          nb::kw_only(), "program"_a, "max_step_tokens"_a, "num_threads"_a, "is_fast"_a)
      .def(
          "begin_weight",
          [](Stage& stage, const std::string& name, const std::vector<int64_t>& shape,
             const std::string& format) {
            nb::gil_scoped_release released;
            stage.begin_weight(name, shape, find_format(format));
          },
          "name"_a, "shape"_a, "format"_a)
      .def(
          "write_rows",
          [](Stage& stage, const std::string& name, int64_t start_row, int64_t end_row,
             const Bytes& data) {
            nb::gil_scoped_release released;
            stage.write_rows(name, start_row, end_row, data.data(), data.size());
          },
          "name"_a, "start_row"_a, "end_row"_a, "data"_a)
      .def("finish_weight", &Stage::finish_weight, "name"_a)
      .def(
          "map_weight",
          [](Stage& stage, const std::string& name, const std::vector<int64_t>& shape,
             const std::string& format, const Bytes& data) {
            stage.map_weight(name, shape, find_format(format), data.data(), data.size(),
                             std::make_shared<const Bytes>(data));
          },
          "name"_a, "shape"_a, "format"_a, "data"_a)
      .def(
          "step",
          [](Stage& stage, std::vector<Slice> slices, std::vector<Opening> opened,
             std::vector<int64_t> closed, const Pairs& copies, const Pairs& state_copies,
             const Masks& masks, std::optional<InMatrix> hidden, std::optional<OutMatrix> out,
             nb::object exchange) {
            PythonExchange others(exchange);
            const Step step{std::move(slices), std::move(opened), std::move(closed),
                            as_copies(copies), as_state_copies(state_copies), view(masks),
                            exchange.is_none() ? nullptr : &others};
            nb::gil_scoped_release released;
            StepOutput output = stage.step(step, view(hidden), view(out));
            return std::make_pair(std::move(output.sampled), std::move(output.vectors));
          },
          nb::kw_only(), "slices"_a, "opened"_a, "closed"_a, "copies"_a, "state_copies"_a, "masks"_a,
          "hidden"_a.none(), "out"_a.none(), "exchange"_a = nb::none())
      .def(
          "logits",
          [](Stage& stage, std::vector<Slice> slices, std::vector<Opening> opened,
             std::vector<int64_t> closed, const Pairs& copies, const Pairs& state_copies,
             std::optional<InMatrix> hidden, OutMatrix out, nb::object exchange) {
            PythonExchange others(exchange);
            const Step step{std::move(slices), std::move(opened), std::move(closed),
                            as_copies(copies), as_state_copies(state_copies), {},
                            exchange.is_none() ? nullptr : &others};
            nb::gil_scoped_release released;
            stage.logits(step, view(hidden), view(out));
          },
          nb::kw_only(), "slices"_a, "opened"_a, "closed"_a, "copies"_a, "state_copies"_a,
          "hidden"_a.none(), "out"_a, "exchange"_a = nb::none())
      .def(
          "read_blocks",
          [](Stage& stage, const std::vector<int64_t>& blocks, const OutBytes& out) {
            nb::gil_scoped_release released;
            stage.read_blocks(blocks, out.data(), out.size());
          },
          "blocks"_a, "out"_a)
      .def(
          "write_blocks",
          [](Stage& stage, const std::vector<int64_t>& blocks, const Bytes& data) {
            nb::gil_scoped_release released;
            stage.write_blocks(blocks, data.data(), data.size());
          },
          "blocks"_a, "data"_a)
      .def_prop_ro("block_bytes", &Stage::block_bytes)
      .def(
          "read_states",
          [](Stage& stage, const std::vector<int64_t>& states, const OutBytes& out) {
            nb::gil_scoped_release released;
            stage.read_states(states, out.data(), out.size());
          },
          "states"_a, "out"_a)
      .def(
          "write_states",
          [](Stage& stage, const std::vector<int64_t>& states, const Bytes& data) {
            nb::gil_scoped_release released;
            stage.write_states(states, data.data(), data.size());
          },
          "states"_a, "data"_a)
      .def_prop_ro("state_bytes", &Stage::state_bytes)
      .def("time_ops", &Stage::time_ops)
      .def("times",
           [](Stage& stage) {
             Stage::Times times = stage.times();
             return std::make_pair(std::move(times.ops), times.sampling_seconds);
           })
      .def_prop_ro("weights_bytes", &Stage::weights_bytes)
      .def_prop_ro("mapped_bytes", &Stage::mapped_bytes)
      .def_prop_ro("expert_use", [](const Stage& stage) {
        const ExpertUse use = stage.expert_use();
        return std::make_pair(use.num_used, use.num_in_memory);
      });
}

// A sampler without a stage, for logits that are computed elsewhere.
class StandaloneSampler {
 public:
  StandaloneSampler(int64_t vocab_size, const std::string& isa, std::shared_ptr<ThreadPool> pool)
      : vocab_size_(vocab_size),
        pool_(std::move(pool)),
        sampler_(vocab_size, find_kernels(isa), pool_->num_threads()) {}

  void open(const std::vector<Opening>& openings) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sampler_.check_openings(openings);
    sampler_.open(openings);
  }

  void close(int64_t sequence_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    sampler_.close(sequence_id);
  }

  std::vector<SampledToken> sample(const std::vector<std::pair<int64_t, int64_t>>& wanted,
                                   MatrixView logits,
                                   const std::vector<std::optional<int64_t>>& known,
                                   const std::vector<TokenMask>& masks,
                                   const std::vector<std::optional<int64_t>>& drafts,
                                   const std::vector<int64_t>& mask_rows) {
    check_count("known", known.size(), wanted.size());
    check_count("drafts", drafts.size(), wanted.size());
    check_count("mask_rows", mask_rows.size(), wanted.size());
    if (logits.rows != static_cast<int64_t>(wanted.size()) || logits.columns != vocab_size_) {
      throw Error("logits must have a row of the vocabulary's size per sequence");
    }
    std::vector<WantedRow> rows;
    for (size_t i = 0; i < wanted.size(); ++i) {
      rows.push_back({0, wanted[i].first, wanted[i].second,
                      known.empty() ? std::nullopt : known[i],
                      drafts.empty() ? std::nullopt : drafts[i],
                      mask_rows.empty() ? 0 : mask_rows[i]});
      if (rows.back().known && (*rows.back().known < 0 || *rows.back().known >= vocab_size_)) {
        throw Error("a known token is not within the vocabulary");
      }
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    sampler_.check_masks(masks);
    for (const TokenMask& mask : masks) check_rows(mask, rows);
    ThreadPool::Session session(*pool_);
    Sampler::Recording recording(sampler_);
    auto sampled =
        sampler_.sample(rows.data(), rows.data() + rows.size(), logits.data, masks, session);
    recording.keep();
    return sampled;
  }

 private:
  static void check_count(const std::string& name, size_t count, size_t num_wanted) {
    if (count != 0 && count != num_wanted) {
      throw Error(name + " must have an entry per sequence, or none");
    }
  }
  static void check_rows(const TokenMask& mask, const std::vector<WantedRow>& rows) {
    for (const WantedRow& row : rows) {
      if (row.sequence_id != mask.sequence_id || row.known) continue;
      if (row.mask_row < 0 || row.mask_row >= mask.rows) {
        throw Error("sequence " + std::to_string(mask.sequence_id) + ": it has no mask " +
                    std::to_string(row.mask_row));
      }
    }
  }

  const int64_t vocab_size_;
  const std::shared_ptr<ThreadPool> pool_;
  std::mutex mutex_;
  Sampler sampler_;
};

void bind_sampler(nb::module_& m) {
  nb::class_<StandaloneSampler>(m, "Sampler")
      .def(nb::init<int64_t, const std::string&, std::shared_ptr<ThreadPool>>(), nb::kw_only(),
           "vocab_size"_a, "isa"_a, "pool"_a)
      .def("open", &StandaloneSampler::open, "openings"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("close", &StandaloneSampler::close, "sequence_id"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def(
          "sample",
          [](StandaloneSampler& sampler, const std::vector<std::pair<int64_t, int64_t>>& wanted,
             const InMatrix& logits, const std::vector<std::optional<int64_t>>& known,
             const Masks& masks, const std::vector<std::optional<int64_t>>& drafts,
             const std::vector<int64_t>& mask_rows) {
            const std::vector<TokenMask> views = view(masks);
            nb::gil_scoped_release released;
            return sampler.sample(wanted, view(logits), known, views, drafts, mask_rows);
          },
          "wanted"_a, "logits"_a, "known"_a = std::vector<std::optional<int64_t>>(),
          "masks"_a = Masks(), "drafts"_a = std::vector<std::optional<int64_t>>(),
          "mask_rows"_a = std::vector<int64_t>());
}

void bind_packing(nb::module_& m) {
  m.def(
      "pack_rows_on",
      [](ThreadPool& pool, const std::string& format_name, int64_t columns, const Bytes& rows,
         int64_t start_row, int64_t num_rows, const OutBytes& panels) {
        const Format format = find_format(format_name);
        if (columns < 1 || columns % format_info(format).block_columns != 0) {
          throw Error("columns are no whole blocks");
        }
        if (start_row < 0 || num_rows < 0) throw Error("the row range is negative");
        const int64_t panel = panel_bytes(format, columns);
        const auto given = static_cast<int64_t>(rows.size());
        if (given % (panel / kPanelRows) != 0 || given / (panel / kPanelRows) != num_rows) {
          throw Error("rows has not the size of num_rows");
        }
        const int64_t room = static_cast<int64_t>(panels.size()) / panel * kPanelRows;
        if (num_rows > room || start_row > room - num_rows) throw Error("panels is too small");
        nb::gil_scoped_release released;
        ThreadPool::Session session(pool);
        pack_rows_on(session, format, columns, rows.data(), start_row, num_rows, panels.data());
      },
      "pool"_a, "format"_a, "columns"_a, "rows"_a, "start_row"_a, "num_rows"_a, "panels"_a);
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), "num_threads"_a)
      .def_prop_ro("num_threads", &ThreadPool::num_threads)
      .def_prop_rw("num_active", &ThreadPool::num_active, &ThreadPool::set_num_active);
  bind_values(m);
  bind_packing(m);
  bind_stage(m);
  bind_sampler(m);
}

}  // namespace potluck
