// Memory bandwidth and peak arithmetic throughput.
#include "bind/measure_module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "dispatch/table.h"
#include "measure/memory_reader.h"
#include "measure/peak.h"
#include "program/error.h"
#include "program/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

const PeakLoop* find_loop(const std::string& isa, const std::string& operands) {
  if (kernels_for(isa.c_str()) == nullptr) throw Error("no kernels for '" + isa + "' can run here");
  if (operands == "int8") return find_peak_loop(isa.c_str(), Operands::Int8);
  if (operands == "bf16") return find_peak_loop(isa.c_str(), Operands::Bf16);
  if (operands == "f32") return find_peak_loop(isa.c_str(), Operands::F32);
  throw Error("there are no operands '" + operands + "'");
}

std::optional<std::string> peak_instruction(const std::string& isa,
                                            const std::string& operands) {
  const PeakLoop* loop = find_loop(isa, operands);
  if (loop == nullptr) return std::nullopt;
  return loop->instruction;
}

double peak_of(ThreadPool& pool, const std::string& isa, const std::string& operands,
               int64_t num_chunks, int64_t num_rounds) {
  const PeakLoop* loop = find_loop(isa, operands);
  if (loop == nullptr) throw Error("'" + isa + "' has no " + operands + " of its own");
  if (num_chunks < 1 || num_rounds < 1) throw Error("num_chunks and num_rounds are at least 1");
  return measure_peak(*loop, num_chunks, num_rounds, pool);
}

}  // namespace

void bind_measure(nb::module_& m) {
  nb::class_<MemoryReader>(m, "MemoryReader")
      .def(nb::init<uint64_t, std::shared_ptr<ThreadPool>>(), nb::kw_only(), "num_bytes"_a,
           "pool"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("num_bytes", &MemoryReader::num_bytes)
      .def("read", &MemoryReader::read, nb::call_guard<nb::gil_scoped_release>());
  m.def("peak_instruction", &peak_instruction, "isa"_a, "operands"_a);
  m.def("measure_peak", &peak_of, nb::kw_only(), "pool"_a, "isa"_a, "operands"_a,
        "num_chunks"_a, "num_rounds"_a, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace potluck
