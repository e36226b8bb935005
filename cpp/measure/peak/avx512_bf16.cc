#include <immintrin.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace avx512_bf16 {

// The operands' type has no name that all compilers support.
#define POTLUCK_BF16(a, x) _mm512_dpbf16_ps(a, (__m512bh)x, (__m512bh)x)
POTLUCK_ROUNDS(bf16_rounds, __m512, "v", _mm512_setzero_ps(), POTLUCK_BF16)

}  // namespace avx512_bf16
}  // namespace potluck
