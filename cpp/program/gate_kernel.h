// The kernels of activations.
#pragma once

#include "kernels/kernels.h"
#include "program/op.h"

namespace potluck {

using GateKernel = void (*)(const float* gate, const float* up, float* out, int64_t count);

// The kernel of an activation with a gate.
inline GateKernel gate_kernel(const Kernels& kernels, op::Activation activation) {
  switch (activation) {
    case op::Activation::Silu: return kernels.silu_gate;
    case op::Activation::GeluTanh: return kernels.gelu_gate;
    case op::Activation::ClampedSwiglu: return kernels.clamped_gate;
    case op::Activation::Product: return kernels.product_gate;
    case op::Activation::ReluSquared: break;
  }
  return nullptr;
}

// `gate` is null if the activation has none.
inline void activate(const Kernels& kernels, op::Activation activation, const float* gate,
                     const float* up, float* out, int64_t count) {
  if (activation == op::Activation::ReluSquared) return kernels.relu_squared(up, out, count);
  gate_kernel(kernels, activation)(gate, up, out, count);
}

}  // namespace potluck
