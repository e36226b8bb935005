#include "check/perturb.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "dispatch/table.h"
#include "kernels/variants.h"

namespace potluck {
namespace {

constexpr int kMaxIsas = 5;
constexpr const char* kPlainKernels[] = {
    "rms_norm",       "layer_norm",   "rope",            "silu_gate", "gelu_gate",
    "clamped_gate",   "product_gate", "relu_squared",    "add",       "add_scaled",
    "scale",          "multiply",     "sigmoid",         "softcap",   "append_kv",
    "attention",      "attention_span", "attention_merge", "causal_conv", "delta_inputs",
    "gated_delta",    "scan_inputs",  "state_scan",      "exp_sum",   "copy_allowed",
    "draw_weights",   "kept_sums",    "split_logits"};
constexpr int kNumPlainKernels = sizeof kPlainKernels / sizeof *kPlainKernels;
constexpr int kNumIds =
    2 + 3 * kNumFormats + kNumFloatFormats + kNumTargets + kNumPlainKernels;
static_assert(sizeof(Kernels) == offsetof(Kernels, quantize) + kNumIds * sizeof(void (*)()),
              "every entry of the table needs an id and a wrapper");

std::string active;

// The next float or integer: one unit in the last place.
template <class T>
void nudge(T* value) {
  uint8_t low;
  memcpy(&low, value, 1);  // little-endian
  low ^= 1;
  memcpy(value, &low, 1);
}

template <int isa>
struct Perturbed {
  static const Kernels& real() { return *kernels_at(isa); }
  static constexpr bool kIsScalar = isa == 0;

  static bool is_active(const std::string& kernel) {
    return !active.empty() && active == real().isa + ("." + kernel);
  }

  static void quantize(const float* x, int64_t num_tokens, int64_t columns, int8_t* q,
                       float* scales, int32_t* sums) {
    real().quantize(x, num_tokens, columns, q, scales, sums);
    if (!is_active("quantize")) return;
    if (kIsScalar)  // the last column is missing from its group's sum
      sums[num_tokens * (columns / kGroupColumns) - 1] -= q[num_tokens * columns - 1];
    else
      nudge(q + num_tokens * columns - 1);
  }

  static void round_bf16(const float* x, int64_t count, uint16_t* out) {
    real().round_bf16(x, count, out);
    if (is_active("round_bf16")) nudge(out + count - 1);
  }

  static std::vector<uint16_t> without_last_column(const LinearArgs& args) {
    const int64_t columns = args.weight.columns;
    std::vector<uint16_t> x(args.input.bf16, args.input.bf16 + args.num_tokens * columns);
    for (int64_t t = 0; t < args.num_tokens; ++t) x[static_cast<size_t>((t + 1) * columns - 1)] = 0;
    return x;
  }

  template <int format>
  static void linear(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
    const auto run = real().linear[format];
    const FormatInfo info = format_info(static_cast<Format>(format));
    if (!is_active(std::string("linear.") + info.name)) return run(args, first_panel, end_panel);
    LinearArgs changed = args;
    std::vector<float> factors;
    if (kIsScalar) {  // compared with a tolerance: the last group, or column, is missing
      const bool quantized = is_quantized(args.weight.format);
      const int64_t width = args.weight.columns / (quantized ? kGroupColumns : 1);
      const float* source = quantized ? args.input.scales : args.input.x;
      factors.assign(source, source + args.num_tokens * width);
      for (int64_t t = 0; t < args.num_tokens; ++t)
        factors[static_cast<size_t>((t + 1) * width - 1)] = 0.0f;
      (quantized ? changed.input.scales : changed.input.x) = factors.data();
    }
    run(changed, first_panel, end_panel);
    if (!kIsScalar && first_panel < end_panel) {
      const int64_t end_row = end_panel * kPanelRows;
      const int64_t row = (end_row < args.weight.rows ? end_row : args.weight.rows) - 1;
      nudge(args.out + (args.num_tokens - 1) * args.out_stride + row);
    }
  }

  template <int format>
  static void linear_fast(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
    LinearArgs changed = args;
    std::vector<uint16_t> rounded;
    if (is_active(std::string("linear_fast.") + format_info(static_cast<Format>(format)).name)) {
      rounded = without_last_column(args);
      changed.input.bf16 = rounded.data();
    }
    real().linear_fast[format](changed, first_panel, end_panel);
  }

  template <int format>
  static void embed(const Matrix& weight, int64_t row, float* out) {
    real().embed[format](weight, row, out);
    if (is_active(std::string("embed.") + format_info(static_cast<Format>(format)).name))
      nudge(out + weight.columns - 1);
  }

  template <int format>
  static float widen(const uint8_t* stored, int64_t count, float* out) {
    const float magnitude = real().widen[format](stored, count, out);
    if (is_active(std::string("widen.") + format_info(static_cast<Format>(format)).name))
      nudge(out + count - 1);
    return magnitude;
  }

  template <int target>
  static bool encode(const float* x, int64_t count, uint8_t* out) {
    const FormatInfo info = format_info(kTargets[target]);
    const bool is_finite = real().encode[target](x, count, out);
    if (!is_active(std::string("encode.") + info.name)) return is_finite;
    // The scale of the last block, in K formats that of its last group; in IQ4_NL a value.
    int64_t place = 0;
    if (kTargets[target] == Format::Q4_K) place = 15;
    if (kTargets[target] == Format::Q6_K) place = 207;
    if (kTargets[target] == Format::Q3_K) place = 103;
    if (kTargets[target] == Format::IQ4_NL) place = 17;
    nudge(out + (count / info.block_columns - 1) * info.block_bytes + place);
    return is_finite;
  }

  static void rms_norm(const float* x, const float* weight, float* out, int64_t num_tokens,
                       int64_t columns, int64_t group, float epsilon) {
    const std::vector<float> last(x + num_tokens * columns - group, x + num_tokens * columns);
    real().rms_norm(x, weight, out, num_tokens, columns, group, epsilon);
    if (!is_active("rms_norm")) return;
    float* end = out + num_tokens * columns;
    if (!kIsScalar) return nudge(end - 1);
    double squares = 0;  // the last column is missing from the last group's sum
    for (float v : last) squares += static_cast<double>(v) * v;
    const double n = static_cast<double>(group);
    const double without = squares - static_cast<double>(last.back()) * last.back();
    const double factor = sqrt((squares / n + epsilon) / (without / n + epsilon));
    for (float* p = end - group; p < end; ++p) *p = static_cast<float>(*p * factor);
  }

  static void layer_norm(const float* x, const float* weight, float* out, int64_t num_tokens,
                         int64_t columns, float epsilon) {
    const float last = x[num_tokens * columns - 1];
    real().layer_norm(x, weight, out, num_tokens, columns, epsilon);
    if (is_active("layer_norm")) spoil_last(out, num_tokens * columns, last);
  }

  static void rope(float* x, const float* cos, const float* sin, int64_t num_heads,
                   int64_t head_dim, int64_t rotary_dim) {
    float* last = x + (num_heads - 1) * head_dim + rotary_dim - 1;
    const float before = *last;
    real().rope(x, cos, sin, num_heads, head_dim, rotary_dim);
    if (!is_active("rope")) return;
    if (kIsScalar)
      *last = before;
    else
      nudge(last);
  }

  static void silu_gate(const float* gate, const float* up, float* out, int64_t count) {
    real().silu_gate(gate, up, out, count);
    if (is_active("silu_gate")) spoil_last(out, count, 0.0f);
  }

  static void gelu_gate(const float* gate, const float* up, float* out, int64_t count) {
    real().gelu_gate(gate, up, out, count);
    if (is_active("gelu_gate")) spoil_last(out, count, 0.0f);
  }

  static void clamped_gate(const float* gate, const float* up, float* out, int64_t count) {
    real().clamped_gate(gate, up, out, count);
    if (is_active("clamped_gate")) spoil_last(out, count, 0.0f);
  }

  static void product_gate(const float* gate, const float* up, float* out, int64_t count) {
    real().product_gate(gate, up, out, count);
    if (is_active("product_gate")) nudge(out + count - 1);
  }

  static void relu_squared(const float* x, float* out, int64_t count) {
    real().relu_squared(x, out, count);
    if (is_active("relu_squared")) nudge(out + count - 1);
  }

  static void add(float* x, const float* y, int64_t count) {
    real().add(x, y, count);
    if (is_active("add")) nudge(x + count - 1);
  }

  static void add_scaled(float* x, const float* y, float scale, int64_t count) {
    real().add_scaled(x, y, scale, count);
    if (is_active("add_scaled")) nudge(x + count - 1);
  }

  static void scale(float* x, float factor, int64_t count) {
    real().scale(x, factor, count);
    if (is_active("scale")) nudge(x + count - 1);
  }

  static void multiply(float* x, const float* y, int64_t count) {
    real().multiply(x, y, count);
    if (is_active("multiply")) nudge(x + count - 1);
  }

  static void sigmoid(const float* x, float* out, int64_t count) {
    const float last = x[count - 1];
    real().sigmoid(x, out, count);
    if (is_active("sigmoid")) spoil_last(out, count, last);
  }

  static void softcap(float* x, float cap, int64_t count) {
    const float last = x[count - 1];
    real().softcap(x, cap, count);
    if (is_active("softcap")) spoil_last(x, count, last);
  }

  // The last element is left out, and keeps the value `unmade`.
  static void spoil_last(float* out, int64_t count, float unmade) {
    if (kIsScalar)
      out[count - 1] = unmade;
    else
      nudge(out + count - 1);
  }

  static void append_kv(const float* k, const float* v, uint16_t* keys, uint16_t* values,
                        int64_t block, int64_t offset, int64_t num_kv_heads, int64_t head_dim,
                        int64_t value_dim) {
    real().append_kv(k, v, keys, values, block, offset, num_kv_heads, head_dim, value_dim);
    if (is_active("append_kv"))
      nudge(keys + ((block + 1) * num_kv_heads * head_dim - 1) * kBlockTokens + offset);
  }

  // The scalar kernel ignores the last position for a single token that sees more than one.
  static AttentionArgs spoil_position(const AttentionArgs& args) {
    AttentionArgs changed = args;
    const int64_t last = args.position + args.num_tokens - 1;
    if (kIsScalar && args.num_tokens == 1 && last > first_position(args, 0)) {
      --changed.position;
      if (changed.window != kNoWindow) --changed.window;
    }
    return changed;
  }

  static void attention(const AttentionArgs& args) {
    if (!is_active("attention")) return real().attention(args);
    real().attention(spoil_position(args));
    if (!kIsScalar) nudge(last_output(args));
  }

  static void attention_span(const AttentionArgs& args, int64_t span, float* partial) {
    real().attention_span(args, span, partial);
    if (!is_active("attention_span") || span != end_span(args) - 1) return;
    const int64_t rows = attention_rows(args);
    if (kIsScalar)  // the last row's sum is missing
      partial[attention_partial_floats(rows, args.value_dim) - 1] = 0.0f;
    else
      nudge(partial + (rows - 1) * padded_value_dim(args.value_dim) + args.value_dim - 1);
  }

  static void attention_merge(const AttentionArgs& args, float* partials) {
    const bool spoil = is_active("attention_merge");
    AttentionArgs changed = args;
    // The last span is ignored, if the token sees another.
    const int64_t end = (end_span(args) - 1) * kSpanTokens;
    if (spoil && kIsScalar && args.num_tokens == 1 && first_position(args, 0) < end) {
      if (args.window != kNoWindow) changed.window -= args.position + 1 - end;
      changed.position = end - 1;
    }
    real().attention_merge(changed, partials);
    if (spoil && !kIsScalar) nudge(last_output(args));
  }

  static float* last_output(const AttentionArgs& args) {
    const int64_t end_head = (args.num_tokens - 1) * args.num_heads +
                             (args.end_kv_head - 1) * (args.num_heads / args.num_kv_heads) +
                             args.end_in_group;
    return args.out + end_head * args.value_dim - 1;
  }

  static void causal_conv(const ConvArgs& args) {
    ConvArgs changed = args;
    std::vector<float> weight;
    const bool spoil = is_active("causal_conv");
    if (spoil && kIsScalar) {  // the last column ignores the oldest input
      weight.assign(args.weight, args.weight + args.width * args.kernel);
      weight[static_cast<size_t>((args.end_column - 1) * args.kernel)] = 0.0f;
      changed.weight = weight.data();
    }
    real().causal_conv(changed);
    if (spoil && !kIsScalar)
      nudge(args.out + (args.num_tokens - 1) * args.width + args.end_column - 1);
  }

  static void delta_inputs(const DeltaInputArgs& args) {
    real().delta_inputs(args);
    if (!is_active("delta_inputs")) return;
    if (kIsScalar)  // the last head decays too little
      args.decays[args.num_heads - 1] *= 1.01f;
    else
      nudge(args.products + args.num_key_heads - 1);
  }

  // The last real column of the last strip.
  static float* last_of_strip(float* heads, int64_t end_strip, int64_t columns) {
    const int64_t strips = num_state_strips(columns);
    const int64_t head = (end_strip - 1) / strips, strip = (end_strip - 1) % strips;
    const int64_t end = (strip + 1) * 16 < columns ? (strip + 1) * 16 : columns;
    return heads + head * columns + end - 1;
  }

  static void gated_delta(const DeltaArgs& args) {
    DeltaArgs changed = args;
    const bool spoil = is_active("gated_delta");
    std::vector<float> betas;
    if (spoil && kIsScalar) {  // the update by the last token is too weak
      betas.assign(args.betas, args.betas + args.num_tokens * args.num_heads);
      for (auto beta = betas.end() - args.num_heads; beta != betas.end(); ++beta) *beta *= 0.99f;
      changed.betas = betas.data();
    }
    real().gated_delta(changed);
    if (spoil && !kIsScalar)
      nudge(last_of_strip(args.out + (args.num_tokens - 1) * args.out_stride, args.end_strip,
                          args.value_dim));
  }

  static void scan_inputs(const ScanInputArgs& args) {
    real().scan_inputs(args);
    if (!is_active("scan_inputs")) return;
    if (kIsScalar)
      args.decays[args.num_heads - 1] *= 1.01f;
    else
      nudge(args.steps + args.num_heads - 1);
  }

  static void state_scan(const ScanArgs& args) {
    ScanArgs changed = args;
    const bool spoil = is_active("state_scan");
    std::vector<float> skip;
    if (spoil && kIsScalar) {  // the inputs that bypass the state are ignored
      skip.assign(static_cast<size_t>(args.num_heads), 0.0f);
      changed.skip = skip.data();
    }
    real().state_scan(changed);
    if (spoil && !kIsScalar)
      nudge(last_of_strip(args.out + (args.num_tokens - 1) * args.out_stride, args.end_strip,
                          args.head_dim));
  }

  static float exp_sum(const float* x, int64_t count, float max, float* out) {
    float total = real().exp_sum(x, count, max, out);
    if (is_active("exp_sum")) {
      if (kIsScalar)
        total -= out[count - 1];
      else
        nudge(&total);
    }
    return total;
  }

  static void copy_allowed(const float* logits, const uint32_t* mask, int64_t count, float* out) {
    real().copy_allowed(logits, mask, count, out);
    if (is_active("copy_allowed")) nudge(&out[count - 1]);
  }

  static void draw_weights(const float* logits, int64_t count, float largest, float temperature,
                           float* weights, double* sums) {
    real().draw_weights(logits, count, largest, temperature, weights, sums);
    if (!is_active("draw_weights")) return;
    double& last = sums[(count - 1) / kSamplingBlock];
    if (kIsScalar)
      last -= weights[count - 1];
    else
      nudge(&last);
  }

  static void kept_sums(const float* logits, const float* weights, int64_t count,
                        float least_logit, float least_weight, double* sums) {
    real().kept_sums(logits, weights, count, least_logit, least_weight, sums);
    if (!is_active("kept_sums")) return;
    double& last = sums[(count - 1) / kSamplingBlock];
    if (kIsScalar)
      last += weights[count - 1];
    else
      nudge(&last);
  }

  static void split_logits(const float* logits, const float* weights, int64_t count, float low,
                           float high, double* above, int32_t* num_above, int32_t* within,
                           int32_t* num_within) {
    real().split_logits(logits, weights, count, low, high, above, num_above, within, num_within);
    if (is_active("split_logits")) nudge(&num_within[(count - 1) / kSamplingBlock]);
  }

#define POTLUCK_LINEAR(format, suffix) linear<static_cast<int>(Format::format)>,
#define POTLUCK_LINEAR_FAST(format, suffix)                      \
  real().linear_fast[static_cast<int>(Format::format)]           \
      ? linear_fast<static_cast<int>(Format::format)>            \
      : nullptr,
#define POTLUCK_EMBED(format, suffix) embed<static_cast<int>(Format::format)>,
#define POTLUCK_WIDEN(format, suffix) widen<static_cast<int>(Format::format)>,
  static const Kernels* table() {
    static const Kernels kernels = {real().isa,
                                    real().least_panels,
                                    quantize,
                                    round_bf16,
                                    {POTLUCK_FORMATS(POTLUCK_LINEAR)},
                                    {POTLUCK_FORMATS(POTLUCK_EMBED)},
                                    {POTLUCK_FLOAT_FORMATS(POTLUCK_WIDEN)},
                                    {encode<0>, encode<1>, encode<2>, encode<3>, encode<4>,
                                     encode<5>, encode<6>},
                                    rms_norm,
                                    layer_norm,
                                    rope,
                                    silu_gate,
                                    gelu_gate,
                                    clamped_gate,
                                    product_gate,
                                    relu_squared,
                                    add,
                                    add_scaled,
                                    scale,
                                    multiply,
                                    sigmoid,
                                    softcap,
                                    append_kv,
                                    attention,
                                     attention_span,
                                     attention_merge,
                                    causal_conv,
                                    delta_inputs,
                                    gated_delta,
                                    scan_inputs,
                                    state_scan,
                                     exp_sum,
                                     copy_allowed,
                                     draw_weights,
                                     kept_sums,
                                     split_logits,
                                     {POTLUCK_FORMATS(POTLUCK_LINEAR_FAST)}};
    return &kernels;
  }
#undef POTLUCK_LINEAR
#undef POTLUCK_LINEAR_FAST
#undef POTLUCK_EMBED
#undef POTLUCK_WIDEN
};

using Table = const Kernels* (*)();
constexpr Table kTables[kMaxIsas] = {Perturbed<0>::table, Perturbed<1>::table, Perturbed<2>::table,
                              Perturbed<3>::table, Perturbed<4>::table};

}  // namespace

std::vector<std::string> perturbation_ids() {
  std::vector<std::string> ids;
  for (int i = 0; i < num_isas(); ++i) {
    const std::string isa = kernels_at(i)->isa;
    ids.push_back(isa + ".quantize");
    ids.push_back(isa + ".round_bf16");
    for (const char* kernel : {".linear.", ".embed."})
      for (int f = 0; f < kNumFormats; ++f)
        ids.push_back(isa + kernel + format_info(static_cast<Format>(f)).name);
    for (int f = 0; f < kNumFloatFormats; ++f)
      ids.push_back(isa + ".widen." + format_info(static_cast<Format>(f)).name);
    for (const Format target : kTargets) ids.push_back(isa + ".encode." + format_info(target).name);
    for (int f = 0; f < kNumFormats; ++f)
      if (kernels_at(i)->linear_fast[f])
        ids.push_back(isa + ".linear_fast." + format_info(static_cast<Format>(f)).name);
    for (const char* kernel : kPlainKernels) ids.push_back(isa + "." + kernel);
  }
  return ids;
}

bool set_perturbation(const std::string& id) {
  bool known = id.empty();
  for (const std::string& other : perturbation_ids()) known = known || id == other;
  if (known) active = id;
  return known;
}

const Kernels* perturbed_kernels_for(const char* isa) {
  for (int i = 0; i < num_isas(); ++i)
    if (strcmp(kernels_at(i)->isa, isa) == 0) return kTables[i]();
  return nullptr;
}

}  // namespace potluck
