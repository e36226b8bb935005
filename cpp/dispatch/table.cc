#include "dispatch/table.h"

#include <string.h>

#include "dispatch/cpu_features.h"
#include "kernels/variants.h"

POTLUCK_DECLARE_KERNELS(scalar)
#if defined(__x86_64__)
POTLUCK_DECLARE_KERNELS(avx2)
POTLUCK_DECLARE_KERNELS(avx512)
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
namespace {

// In the order of struct Kernels.
#define POTLUCK_LINEAR(format, suffix) POTLUCK_TABLE_ISA::linear_##suffix,
#define POTLUCK_EMBED(format, suffix) POTLUCK_TABLE_ISA::embed_##suffix,
#define POTLUCK_WIDEN(format, suffix) POTLUCK_TABLE_ISA::widen_##suffix,
#define POTLUCK_ENCODE(format, suffix) POTLUCK_TABLE_ISA::encode_##suffix,
#define POTLUCK_ROW(isa)                                                               \
  {                                                                                    \
    #isa, false, isa::quantize, isa::round_bf16, {POTLUCK_FORMATS(POTLUCK_LINEAR)},                            \
        {POTLUCK_FORMATS(POTLUCK_EMBED)}, {POTLUCK_FLOAT_FORMATS(POTLUCK_WIDEN)},      \
        {POTLUCK_TARGETS(POTLUCK_ENCODE)}, isa::rms_norm, isa::rope, isa::silu_gate,   \
        isa::add, isa::append_kv, isa::attention, isa::exp_sum, {}                     \
  }

#define POTLUCK_TABLE_ISA scalar
constexpr Kernels kScalar = POTLUCK_ROW(scalar);
#undef POTLUCK_TABLE_ISA
#if defined(__x86_64__)
#define POTLUCK_TABLE_ISA avx2
constexpr Kernels kAvx2 = POTLUCK_ROW(avx2);
#undef POTLUCK_TABLE_ISA
#define POTLUCK_TABLE_ISA avx512
constexpr Kernels kAvx512 = POTLUCK_ROW(avx512);
#undef POTLUCK_TABLE_ISA
#endif
#if defined(POTLUCK_HAS_AVX512_BF16)
// As `row`, with another product for BF16 weights, which takes activations as bf16.
constexpr Kernels with_bf16_products(Kernels row, const char* isa,
                                     void (*linear)(const LinearArgs&, int64_t, int64_t)) {
  row.isa = isa;
  row.bf16_activations = true;
  row.linear[static_cast<int>(Format::BF16)] = linear;
  return row;
}
constexpr Kernels kAvx512Bf16 =
    with_bf16_products(kAvx512, "avx512_bf16", avx512_bf16::linear_bf16);
#endif
#if defined(POTLUCK_HAS_AMX)
constexpr Kernels with_tiles(Kernels row) {
#define POTLUCK_SET_PRODUCTS(format, suffix)                            \
  row.linear[static_cast<int>(Format::format)] = amx::linear_##suffix; \
  row.linear_fast[static_cast<int>(Format::format)] = amx::linear_fast_##suffix;
  POTLUCK_QUANTIZED_FORMATS(POTLUCK_SET_PRODUCTS)
#undef POTLUCK_SET_PRODUCTS
  return row;
}
constexpr Kernels kAmx = with_tiles(with_bf16_products(kAvx512, "amx", amx::linear_bf16));
#endif

struct Row {
  const Kernels* kernels;
  bool CpuFeatures::* needs;  // null: nothing
};

// Slowest first. Each needs what the one before it needs.
constexpr Row kTable[] = {
    {&kScalar, nullptr},
#if defined(__x86_64__)
    {&kAvx2, &CpuFeatures::avx2},
    {&kAvx512, &CpuFeatures::avx512},
#endif
#if defined(POTLUCK_HAS_AVX512_BF16)
    {&kAvx512Bf16, &CpuFeatures::avx512_bf16},
#endif
#if defined(POTLUCK_HAS_AMX)
    {&kAmx, &CpuFeatures::amx},
#endif
};

}  // namespace

int num_isas() {
  const CpuFeatures features = cpu_features();
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

const Kernels* best_kernels() { return kernels_at(num_isas() - 1); }

}  // namespace potluck
