#include "bind/hashing_module.h"

#include <nanobind/ndarray.h>

#include <string>

#include "hashing/sha256.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

void bind_hashing(nb::module_& m) {
  nb::class_<Sha256State>(m, "Sha256State")
      .def(nb::init<>())
      .def_static(
          "restored",
          [](const nb::bytes& saved) { return Sha256State(std::string(saved.c_str(), saved.size())); },
          "saved"_a)
      .def(
          "update",
          [](Sha256State& state, const Bytes& data) { state.update(data.data(), data.size()); },
          "data"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>())
      .def("save", [](const Sha256State& state) { return as_bytes(state.save()); })
      .def("digest", [](const Sha256State& state) { return as_bytes(state.digest()); })
      .def_prop_ro("num_bytes", &Sha256State::num_bytes);
}

}  // namespace potluck
