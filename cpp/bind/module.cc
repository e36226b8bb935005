// The extension module potluck.kernels._core. Bindings check shapes and types, release the GIL, and
// do no arithmetic.
#include "bind/convert_module.h"
#include "bind/engine_module.h"
#include "bind/hashing_module.h"
#include "bind/kernels_module.h"
#include "bind/measure_module.h"
#include "bind/program_module.h"
#include "dispatch/table.h"

NB_MODULE(_core, m) {
  potluck::bind_kernels(m, potluck::kernels_for);
  potluck::bind_program(m);
  potluck::bind_engine(m);
  potluck::bind_convert(m);
  potluck::bind_measure(m);
  potluck::bind_hashing(m);
}
