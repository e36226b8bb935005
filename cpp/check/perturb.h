// Kernels with one small defect, on demand, which the tests must detect. Not part of the product.
//
// Every entry of the dispatch table is wrapped in a function that calls it and, while the entry's
// id is the selected one ("avx2.linear.q4_k"), corrupts the result. The variants of an instruction
// set, which must be bit-identical to the scalar ones, are off by one ulp (or one unit) in one
// output element. So are scalar kernels that are compared bit for bit with an oracle; those that
// are compared with a tolerance (and products of bf16, whose bits depend on the instruction set)
// have a realistic defect: the last column, group, position or element is left out.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace potluck {

// "isa.kernel" or "isa.kernel.format" for every entry of the table that can run here.
std::vector<std::string> perturbation_ids();

// Corrupts the kernel `id` from now on, or none if `id` is empty; returns false if there is no such
// id.
bool set_perturbation(const std::string& id);

// Replacement of potluck::kernels_for.
const Kernels* perturbed_kernels_for(const char* isa);

}  // namespace potluck
