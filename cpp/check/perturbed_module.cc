// The extension module _perturbed: the kernels of potluck.kernels._core, and a way to corrupt each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind/kernels_module.h"
#include "check/perturb.h"
#if defined(POTLUCK_EMULATES_AMX)
#include "check/amx_emulator.h"
#endif

namespace nb = nanobind;

NB_MODULE(_perturbed, m) {
  potluck::bind_kernels(m, potluck::perturbed_kernels_for);
  m.def("perturbation_ids", &potluck::perturbation_ids);
  m.def("set_perturbation", [](const std::string& id) {
    if (!potluck::set_perturbation(id)) throw std::invalid_argument("no such kernel: " + id);
  });
#if defined(POTLUCK_EMULATES_AMX)
  m.def("num_emulated_instructions", &potluck::num_emulated_instructions);
  m.def("amx_tiles_configured", &potluck::amx_tiles_configured);
#endif
}
