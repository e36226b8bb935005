// Programs: one class per op, and the checked whole.
#include "bind/program_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "program/error.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

using Name = std::string;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void bind_ops(nb::module_& m) {
  nb::class_<op::Embed<Name>>(m, "Embed")
      .def(nb::init<Name, Name>(), nb::kw_only(), "weight"_a, "out"_a);
  nb::class_<op::RmsNorm<Name>>(m, "RmsNorm")
      .def(nb::init<Name, Name, Name, int64_t, float>(), nb::kw_only(), "x"_a, "weight"_a, "out"_a,
           "group"_a, "epsilon"_a);
  nb::class_<op::Linear<Name>>(m, "Linear")
      .def(nb::init<Name, Name, Name, std::optional<Name>>(), nb::kw_only(), "x"_a, "weight"_a,
           "out"_a, "bias"_a.none());
  nb::class_<op::Rope<Name>>(m, "Rope")
      .def(nb::init<Name, int64_t, int64_t>(), nb::kw_only(), "x"_a, "num_heads"_a, "head_dim"_a);
  nb::class_<op::Attention<Name>>(m, "Attention")
      .def(nb::init<Name, Name, Name, Name, int64_t, int64_t, int64_t, int64_t, float,
                    std::optional<int64_t>>(),
           nb::kw_only(), "q"_a, "k"_a, "v"_a, "out"_a, "cache_index"_a, "num_heads"_a,
           "num_kv_heads"_a, "head_dim"_a, "scale"_a, "window"_a.none());
  nb::class_<op::GatedActivation<Name>>(m, "GatedActivation")
      .def(nb::init<Name, Name, Name>(), nb::kw_only(), "gate"_a, "up"_a, "out"_a);
  nb::class_<op::Moe<Name>>(m, "Moe")
      .def(nb::init<Name, Name, Name, Name, Name, Name, int64_t, int64_t, int64_t, bool>(),
           nb::kw_only(), "x"_a, "logits"_a, "gate"_a, "up"_a, "down"_a, "out"_a, "num_experts"_a,
           "num_experts_per_token"_a, "expert_width"_a, "normalize_shares"_a);
  nb::class_<op::Add<Name>>(m, "Add")
      .def(nb::init<Name, Name>(), nb::kw_only(), "x"_a, "y"_a);
  nb::class_<op::Head<Name>>(m, "Head")
      .def(nb::init<Name, std::optional<Name>, int64_t>(), nb::kw_only(), "x"_a,
           "weight"_a.none(), "vocab_size"_a);
}

RopeTable rope_table(const Table& cos, const Table& sin) {
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
    throw Error("the two halves of the rope table have different shapes");
  }
  return {static_cast<int64_t>(cos.shape(0)), static_cast<int64_t>(cos.shape(1)), cos.data(),
          sin.data(), std::make_shared<const std::pair<Table, Table>>(cos, sin)};
}

}  // namespace

void bind_program(nb::module_& m) {
  // The later registered is tried first, so the derived classes come last.
  const nb::exception<Error> error(m, "Error", PyExc_RuntimeError);
  nb::exception<OutOfMemoryError>(m, "OutOfMemoryError", error);
  nb::exception<NonFiniteError>(m, "NonFiniteError", error);
  bind_ops(m);
  nb::class_<Register>(m, "Register")
      .def(nb::init<std::string, int64_t>(), nb::kw_only(), "name"_a, "width"_a);
  nb::class_<WeightSpec>(m, "WeightSpec")
      .def(nb::init<std::string, std::vector<int64_t>>(), nb::kw_only(), "name"_a, "shape"_a);
  nb::class_<CacheSpec>(m, "CacheSpec")
      .def(nb::init<int64_t, int64_t>(), nb::kw_only(), "num_kv_heads"_a, "head_dim"_a);
  nb::class_<Program>(m, "Program")
      .def(nb::new_([](std::vector<Register> registers, std::vector<op::Named> ops,
                       std::vector<WeightSpec> weights, std::vector<CacheSpec> caches,
                       std::optional<Table> rope_cos, std::optional<Table> rope_sin,
                       int64_t hidden_size, int64_t vocab_size, int64_t context_tokens,
                       bool has_embedding, bool has_head) {
             RopeTable rope;
             if (rope_cos && rope_sin) rope = rope_table(*rope_cos, *rope_sin);
             return std::make_shared<const Program>(ProgramSpec{
                 std::move(registers), std::move(ops), std::move(weights), std::move(caches),
                 std::move(rope), hidden_size, vocab_size, context_tokens, has_embedding,
                 has_head});
           }),
           nb::kw_only(), "registers"_a, "ops"_a, "weights"_a, "caches"_a, "rope_cos"_a.none(),
           "rope_sin"_a.none(), "hidden_size"_a, "vocab_size"_a, "context_tokens"_a,
           "has_embedding"_a, "has_head"_a);
}

}  // namespace potluck
