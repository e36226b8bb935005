#include <immintrin.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace avx512 {

#define POTLUCK_INT8(a, x) _mm512_dpbusd_epi32(a, x, x)
#define POTLUCK_F32(a, x) _mm512_fmadd_ps(x, x, a)
POTLUCK_ROUNDS(int8_rounds, __m512i, "v", _mm512_setzero_si512(), POTLUCK_INT8)
POTLUCK_ROUNDS(f32_rounds, __m512, "v", _mm512_setzero_ps(), POTLUCK_F32)

}  // namespace avx512
}  // namespace potluck
