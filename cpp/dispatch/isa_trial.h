// Instruction sets that are announced, tried out before they are trusted.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace potluck {

// What is wrong with `kernels` on this machine, in a few words; empty if nothing is, and for those
// that are trusted untried, which are all that use no tiles.
//
// Tiles depend on more than a CPU's announcement: the kernel's leave, a hypervisor that passes on
// the state, and emulators that announce what they lack. A forked child multiplies every format
// by tiles and compares bit for bit with the scalar kernels, so that an illegal instruction ends
// the child alone. Takes a few milliseconds; the child allocates nothing and takes no lock.
std::string isa_problem(const Kernels& kernels);

}  // namespace potluck
