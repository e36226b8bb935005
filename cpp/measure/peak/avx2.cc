#include <immintrin.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace avx2 {

#define POTLUCK_INT8(a, x) _mm256_maddubs_epi16(a, x)
#define POTLUCK_F32(a, x) _mm256_fmadd_ps(x, x, a)
POTLUCK_ROUNDS(int8_rounds, __m256i, "x", _mm256_setzero_si256(), POTLUCK_INT8)
POTLUCK_ROUNDS(f32_rounds, __m256, "x", _mm256_setzero_ps(), POTLUCK_F32)

}  // namespace avx2
}  // namespace potluck
