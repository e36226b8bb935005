// The extension module potluck.kernels._core.
#include "bind/kernels_module.h"
#include "dispatch/table.h"

NB_MODULE(_core, m) { potluck::bind_kernels(m, potluck::kernels_for); }
