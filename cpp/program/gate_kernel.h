// Which kernel an activation is.
#pragma once

#include "kernels/kernels.h"
#include "program/op.h"

namespace potluck {

using GateKernel = void (*)(const float* gate, const float* up, float* out, int64_t count);

inline GateKernel gate_kernel(const Kernels& kernels, op::Activation activation) {
  switch (activation) {
    case op::Activation::Silu: return kernels.silu_gate;
    case op::Activation::GeluTanh: return kernels.gelu_gate;
    case op::Activation::ClampedSwiglu: return kernels.clamped_gate;
    case op::Activation::Product:
    case op::Activation::ReluSquared: break;  // Program refuses them
  }
  return nullptr;
}

}  // namespace potluck
