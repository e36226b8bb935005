// Tests advertised instruction sets before they are used.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace potluck {

// Returns a short description of what is wrong with `kernels` on this machine; empty if nothing is,
// and for instruction sets that need no test, which are all that use no tiles.
//
// Tiles depend on more than the CPU's feature bits: the kernel's permission, a hypervisor that
// saves the state, and emulators that advertise features they lack. A forked child multiplies
// weights of every format with tiles and compares the results bit for bit with the scalar kernels,
// so that an illegal instruction only terminates the child. This takes a few milliseconds; the
// child allocates nothing and takes no lock.
std::string isa_problem(const Kernels& kernels);

}  // namespace potluck
