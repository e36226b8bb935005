#include "dispatch/table.h"

#include <string.h>

#include "dispatch/amx_support.h"
#include "dispatch/cpu_features.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(scalar)
#if defined(POTLUCK_HAS_AVX2)
POTLUCK_DECLARE_KERNELS(avx2)
#endif
#if defined(POTLUCK_HAS_AVX512)
POTLUCK_DECLARE_KERNELS(avx512)
#endif
#if defined(POTLUCK_HAS_NEON)
POTLUCK_DECLARE_KERNELS(neon)
#endif
#if defined(POTLUCK_HAS_DOTPROD)
POTLUCK_DECLARE_QUANTIZED_LINEAR(dotprod)
#endif

namespace potluck {
#if defined(POTLUCK_HAS_AVX512_BF16)
namespace avx512_bf16 {
void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
}
#endif
#if defined(POTLUCK_HAS_AMX)
namespace amx {
#define POTLUCK_DECLARE_PRODUCTS(format, suffix)                                         \
  void linear_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel); \
  void linear_fast_##suffix(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
POTLUCK_QUANTIZED_FORMATS(POTLUCK_DECLARE_PRODUCTS)
#undef POTLUCK_DECLARE_PRODUCTS
void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
}  // namespace amx
#endif
#if defined(POTLUCK_HAS_I8MM)
namespace i8mm {
void linear_q8_0(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
}
#endif
namespace {

// In the order of the members of struct Kernels.
#define POTLUCK_LINEAR(format, suffix) POTLUCK_TABLE_ISA::linear_##suffix,
#define POTLUCK_EMBED(format, suffix) POTLUCK_TABLE_ISA::embed_##suffix,
#define POTLUCK_WIDEN(format, suffix) POTLUCK_TABLE_ISA::widen_##suffix,
#define POTLUCK_ENCODE(format, suffix) POTLUCK_TABLE_ISA::encode_##suffix,
#define POTLUCK_ROW(isa)                                                               \
  {                                                                                    \
    #isa, 1, isa::quantize, isa::round_bf16, {POTLUCK_FORMATS(POTLUCK_LINEAR)}, \
        {POTLUCK_FORMATS(POTLUCK_EMBED)}, {POTLUCK_FLOAT_FORMATS(POTLUCK_WIDEN)},      \
        {POTLUCK_TARGETS(POTLUCK_ENCODE)}, isa::rms_norm, isa::layer_norm, isa::rope,  \
        isa::silu_gate, isa::gelu_gate, isa::clamped_gate, isa::product_gate,          \
        isa::relu_squared, isa::add, isa::add_scaled,                                  \
        isa::scale, isa::multiply, isa::sigmoid, isa::softcap, isa::append_kv,         \
        isa::attention, isa::attention_span, isa::attention_merge,                      \
        isa::causal_conv, isa::delta_inputs, isa::gated_delta, isa::scan_inputs,       \
        isa::state_scan, isa::exp_sum,                                                 \
        isa::copy_allowed, isa::draw_weights, isa::kept_sums, isa::split_logits, {}    \
  }

#define POTLUCK_TABLE_ISA scalar
constexpr Kernels kScalar = POTLUCK_ROW(scalar);
#undef POTLUCK_TABLE_ISA
#if defined(POTLUCK_HAS_AVX2)
#define POTLUCK_TABLE_ISA avx2
constexpr Kernels kAvx2 = POTLUCK_ROW(avx2);
#undef POTLUCK_TABLE_ISA
#endif
#if defined(POTLUCK_HAS_AVX512)
#define POTLUCK_TABLE_ISA avx512
constexpr Kernels kAvx512 = POTLUCK_ROW(avx512);
#undef POTLUCK_TABLE_ISA
#endif
#if defined(POTLUCK_HAS_NEON)
#define POTLUCK_TABLE_ISA neon
constexpr Kernels kNeon = POTLUCK_ROW(neon);
#undef POTLUCK_TABLE_ISA
#endif

#if defined(POTLUCK_HAS_AVX512_BF16) || defined(POTLUCK_HAS_I8MM)
// Like `row`, with a fast product for BF16 weights.
constexpr Kernels with_bf16_products(Kernels row, const char* isa,
                                     void (*linear)(const LinearArgs&, int64_t, int64_t)) {
  row.isa = isa;
  row.linear_fast[static_cast<int>(Format::BF16)] = linear;
  return row;
}
#endif
#if defined(POTLUCK_HAS_AVX512_BF16)
constexpr Kernels kAvx512Bf16 =
    with_bf16_products(kAvx512, "avx512_bf16", avx512_bf16::linear_bf16);
#endif
#if defined(POTLUCK_HAS_AMX)
// Copying 512 tokens of 2048 columns to tiles takes about 50 us (Zen 5), multiplying them with one
// panel of BF16 weights 11 us (16 cycles per product of tiles, at 3 GHz).
constexpr int64_t kLeastTilePanels = 16;

constexpr Kernels with_tiles(Kernels row) {
  row.least_panels = kLeastTilePanels;
#define POTLUCK_SET_PRODUCTS(format, suffix)                            \
  row.linear[static_cast<int>(Format::format)] = amx::linear_##suffix; \
  row.linear_fast[static_cast<int>(Format::format)] = amx::linear_fast_##suffix;
  POTLUCK_QUANTIZED_FORMATS(POTLUCK_SET_PRODUCTS)
#undef POTLUCK_SET_PRODUCTS
  return row;
}
constexpr Kernels kAmx = with_tiles(with_bf16_products(kAvx512, "amx", amx::linear_bf16));
#endif
#if defined(POTLUCK_HAS_DOTPROD)
// Like neon, with other products for quantized weights.
constexpr Kernels dotprod_row() {
  using Linear = void(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
#define POTLUCK_TABLE_ISA dotprod
  constexpr Linear* kQuantized[] = {POTLUCK_QUANTIZED_FORMATS(POTLUCK_LINEAR)};
#undef POTLUCK_TABLE_ISA
  constexpr int kFirst = static_cast<int>(Format::Q8_0);
  Kernels row = kNeon;
  row.isa = "dotprod";
  for (int i = kFirst; i < kNumFormats; ++i) row.linear[i] = kQuantized[i - kFirst];
  return row;
}
constexpr Kernels kDotprod = dotprod_row();
#endif
#if defined(POTLUCK_HAS_I8MM)
// Like dotprod, with other products for Q8_0 and fast ones for BF16.
constexpr Kernels i8mm_row() {
  Kernels row = with_bf16_products(kDotprod, "i8mm", i8mm::linear_bf16);
  row.linear[static_cast<int>(Format::Q8_0)] = i8mm::linear_q8_0;
  return row;
}
constexpr Kernels kI8mm = i8mm_row();
#endif

struct Row {
  const Kernels* kernels;
  bool CpuFeatures::* needs;  // null: no requirement
};

// Slowest first. Each requires everything that the previous one requires.
constexpr Row kTable[] = {
    {&kScalar, nullptr},
#if defined(POTLUCK_HAS_AVX2)
    {&kAvx2, &CpuFeatures::avx2},
#endif
#if defined(POTLUCK_HAS_AVX512)
    {&kAvx512, &CpuFeatures::avx512},
#endif
#if defined(POTLUCK_HAS_AVX512_BF16)
    {&kAvx512Bf16, &CpuFeatures::avx512_bf16},
#endif
#if defined(POTLUCK_HAS_AMX)
    {&kAmx, &CpuFeatures::amx},
#endif
#if defined(POTLUCK_HAS_NEON)
    {&kNeon, &CpuFeatures::neon},
#endif
#if defined(POTLUCK_HAS_DOTPROD)
    {&kDotprod, &CpuFeatures::dotprod},
#endif
#if defined(POTLUCK_HAS_I8MM)
    {&kI8mm, &CpuFeatures::i8mm},
#endif
};

}  // namespace

int num_isas() {
  const CpuFeatures features = cpu_features();
  // Called before kernels are used. If it fails, isa_problem says so.
  if (features.amx) request_amx_permission();
  int count = 0;
  for (const Row& row : kTable)
    if (!row.needs || features.*row.needs) ++count;
  return count;
}

const Kernels* kernels_at(int index) { return kTable[index].kernels; }

const Kernels* kernels_for(const char* isa) {
  for (int i = 0; i < num_isas(); ++i)
    if (strcmp(kernels_at(i)->isa, isa) == 0) return kernels_at(i);
  return nullptr;
}

bool uses_tiles(const Kernels& kernels) { return strcmp(kernels.isa, "amx") == 0; }

const Kernels* best_kernels() { return kernels_at(num_isas() - 1); }

}  // namespace potluck
