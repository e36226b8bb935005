// The functions that every instruction set defines, in separate namespaces.
#pragma once

#include "kernels/kernels.h"

// X(enumerator, function suffix) for every storage format, in the order of `Format`.
#define POTLUCK_FLOAT_FORMATS(X) X(F32, f32) X(F16, f16) X(BF16, bf16)
#define POTLUCK_QUANTIZED_FORMATS(X)                                                     \
  X(Q8_0, q8_0) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q4_K, q4_k) \
  X(Q5_K, q5_k) X(Q6_K, q6_k) X(Q2_K, q2_k) X(Q3_K, q3_k) X(IQ4_NL, iq4_nl)          \
  X(IQ4_XS, iq4_xs) X(MXFP4, mxfp4)
#define POTLUCK_FORMATS(X) POTLUCK_FLOAT_FORMATS(X) POTLUCK_QUANTIZED_FORMATS(X)

// X(enumerator, function suffix) in the order of kTargets.
#define POTLUCK_TARGETS(X) \
  X(Q8_0, q8_0) X(Q4_0, q4_0) X(Q5_0, q5_0) X(Q4_K, q4_k) X(Q6_K, q6_k) X(Q3_K, q3_k) \
  X(IQ4_NL, iq4_nl)

#define POTLUCK_DECLARE_WIDEN(format, suffix) \
  float widen_##suffix(const uint8_t* stored, int64_t count, float* out);
#define POTLUCK_DECLARE_ENCODE(format, suffix) \
  bool encode_##suffix(const float* x, int64_t count, uint8_t* out);
#define POTLUCK_DECLARE_FORMAT(format, suffix)                                      \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel); \
  void embed_##suffix(const Matrix& weight, int64_t row, float* out);

#define POTLUCK_DECLARE_KERNELS(isa)                                                              \
  namespace potluck {                                                                             \
  namespace isa {                                                                                 \
  POTLUCK_FORMATS(POTLUCK_DECLARE_FORMAT)                                                         \
  POTLUCK_FLOAT_FORMATS(POTLUCK_DECLARE_WIDEN)                                                    \
  POTLUCK_TARGETS(POTLUCK_DECLARE_ENCODE)                                                         \
  void quantize(const float* x, int64_t num_tokens, int64_t columns, int8_t* q, float* scales,    \
                int32_t* sums);                                                                   \
  void round_bf16(const float* x, int64_t count, uint16_t* out);                                  \
  void rms_norm(const float* x, const float* weight, float* out, int64_t num_tokens,              \
                int64_t columns, int64_t group, float epsilon);                                   \
  void layer_norm(const float* x, const float* weight, float* out, int64_t num_tokens,            \
                  int64_t columns, float epsilon);                                                \
  void rope(float* x, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim,    \
            int64_t rotary_dim);                                                                  \
  void silu_gate(const float* gate, const float* up, float* out, int64_t count);                  \
  void gelu_gate(const float* gate, const float* up, float* out, int64_t count);                  \
  void clamped_gate(const float* gate, const float* up, float* out, int64_t count);               \
  void product_gate(const float* gate, const float* up, float* out, int64_t count);               \
  void relu_squared(const float* x, float* out, int64_t count);                                   \
  void add(float* x, const float* y, int64_t count);                                              \
  void add_scaled(float* x, const float* y, float scale, int64_t count);                          \
  void scale(float* x, float factor, int64_t count);                                              \
  void multiply(float* x, const float* y, int64_t count);                                         \
  void sigmoid(const float* x, float* out, int64_t count);                                        \
  void softcap(float* x, float cap, int64_t count);                                               \
  void append_kv(const float* k, const float* v, uint16_t* keys, uint16_t* values, int64_t block, \
                 int64_t offset, int64_t num_kv_heads, int64_t head_dim, int64_t value_dim);      \
  void attention(const AttentionArgs& args);                                                      \
  void attention_span(const AttentionArgs& args, int64_t span, float* partial);                   \
  void attention_merge(const AttentionArgs& args, float* partials);                               \
  void causal_conv(const ConvArgs& args);                                                         \
  void delta_inputs(const DeltaInputArgs& args);                                                  \
  void gated_delta(const DeltaArgs& args);                                                        \
  void scan_inputs(const ScanInputArgs& args);                                                    \
  void state_scan(const ScanArgs& args);                                                          \
  float exp_sum(const float* x, int64_t count, float max, float* out);                            \
  void copy_allowed(const float* logits, const uint32_t* mask, int64_t count, float* out);        \
  void draw_weights(const float* logits, int64_t count, float largest, float temperature,         \
                    float* weights, double* sums);                                                \
  void kept_sums(const float* logits, const float* weights, int64_t count, float least_logit,     \
                 float least_weight, double* sums);                                               \
  void split_logits(const float* logits, const float* weights, int64_t count, float low,          \
                    float high, double* above, int32_t* num_above, int32_t* within,               \
                    int32_t* num_within);                                                         \
  }                                                                                               \
  }

// The same for the quantized formats only, for an instruction set with its own products of bytes.
#define POTLUCK_DECLARE_LINEAR(format, suffix) \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
#define POTLUCK_DECLARE_QUANTIZED_LINEAR(isa)          \
  namespace potluck {                                  \
  namespace isa {                                      \
  POTLUCK_QUANTIZED_FORMATS(POTLUCK_DECLARE_LINEAR)    \
  }                                                    \
  }
