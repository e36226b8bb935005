// Programs: converts the ops of potluck.types.program by their field names.
#include "bind/program_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "program/error.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

using Name = std::string;
using Table = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Sets the fields of an op from the attributes of the dataclass that defines it.
struct FieldReader {
  nb::handle object;

  template <typename T>
  void operator()(const char* name, T& field) const {
    if constexpr (std::is_enum_v<T>) {
      const auto value = nb::cast<std::string>(object.attr(name).attr("value"));
      const std::optional<T> found = op::from_value<T>(value);
      if (!found) throw Error(std::string("'") + value + "' is not known as " + name);
      field = *found;
    } else {
      field = nb::cast<T>(object.attr(name));
    }
  }
};

// Returns the op named after the object's class.
template <size_t index = 0>
op::Named read_op(nb::handle object, const std::string& name) {
  if constexpr (index == std::variant_size_v<op::Named>) {
    throw Error("there is no op " + name);
  } else {
    using Op = std::variant_alternative_t<index, op::Named>;
    if (name != Op::kName) return read_op<index + 1>(object, name);
    Op op;
    op.each_field(FieldReader{object});
    return op;
  }
}

std::vector<op::Named> read_ops(const nb::sequence& objects) {
  std::vector<op::Named> ops;
  for (const nb::handle object : objects) {
    ops.push_back(read_op(object, nb::cast<std::string>(object.type().attr("__name__"))));
  }
  return ops;
}

RopeTable rope_table(const std::pair<Table, Table>& tables) {
  const auto& [cos, sin] = tables;
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
    throw Error("the two halves of the rope table have different shapes");
  }
  return {static_cast<int64_t>(cos.shape(0)), static_cast<int64_t>(cos.shape(1)), cos.data(),
          sin.data(), std::make_shared<const std::pair<Table, Table>>(tables)};
}

}  // namespace

void bind_program(nb::module_& m) {
  // Types registered later are tried first, so derived classes come last.
  const nb::exception<Error> error(m, "Error", PyExc_RuntimeError);
  nb::exception<OutOfMemoryError>(m, "OutOfMemoryError", error);
  nb::exception<NonFiniteError>(m, "NonFiniteError", error);
  nb::class_<Register>(m, "Register")
      .def(nb::init<std::string, int64_t>(), nb::kw_only(), "name"_a, "width"_a);
  nb::class_<WeightSpec>(m, "WeightSpec")
      .def(nb::init<std::string, std::vector<int64_t>>(), nb::kw_only(), "name"_a, "shape"_a);
  nb::class_<CacheSpec>(m, "CacheSpec")
      .def(nb::init<int64_t, int64_t, int64_t>(), nb::kw_only(), "num_kv_heads"_a, "head_dim"_a,
           "value_dim"_a);
  nb::class_<StateSpec>(m, "StateSpec")
      .def(nb::init<int64_t, int64_t>(), nb::kw_only(), "rows"_a, "width"_a);
  nb::class_<Program>(m, "Program")
      .def(nb::new_([](std::vector<Register> registers, const nb::sequence& ops,
                       std::vector<WeightSpec> weights, std::vector<CacheSpec> caches,
                       std::vector<StateSpec> states,
                       const std::vector<std::pair<Table, Table>>& ropes,
                       int64_t hidden_size, int64_t vocab_size, int64_t context_tokens,
                       bool has_embedding, bool has_head, int64_t member,
                       int64_t num_members) {
             std::vector<RopeTable> tables;
             for (const auto& rope : ropes) tables.push_back(rope_table(rope));
             return std::make_shared<const Program>(ProgramSpec{
                 std::move(registers), read_ops(ops), std::move(weights), std::move(caches),
                 std::move(states), std::move(tables), hidden_size, vocab_size, context_tokens, has_embedding,
                 has_head, member, num_members});
           }),
           nb::kw_only(), "registers"_a, "ops"_a, "weights"_a, "caches"_a, "states"_a, "ropes"_a,
           "hidden_size"_a, "vocab_size"_a, "context_tokens"_a,
           "has_embedding"_a, "has_head"_a, "member"_a = 0, "num_members"_a = 1);
}

}  // namespace potluck
