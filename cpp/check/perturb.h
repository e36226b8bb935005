// Kernels with one small mistake, on demand: what the tests must be able to catch. Not in the
// product.
//
// Every entry of the dispatch table is wrapped by a function that calls it and, while the entry's
// id is the one set ("avx2.linear.q4_k"), spoils the result. The variants of an instruction set,
// whose bits must be those of the scalar kernel, are off by one ulp (or one unit) in one output
// element. So are scalar kernels that are compared with an oracle bit for bit; those compared to a
// tolerance (and products of bf16, which have bits of their own) make a mistake that code makes:
// the last column, group, position or element is forgotten.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace potluck {

// "isa.kernel" or "isa.kernel.format" for every entry of the table that can run here.
std::vector<std::string> perturbation_ids();

// Spoils the kernel `id` from now on, or none if `id` is empty; false if there is no such id.
bool set_perturbation(const std::string& id);

// Stands in for potluck::kernels_for.
const Kernels* perturbed_kernels_for(const char* isa);

}  // namespace potluck
