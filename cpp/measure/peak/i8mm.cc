#include <arm_neon.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace i8mm {

#define POTLUCK_INT8(a, x) vmmlaq_s32(a, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(x))
#define POTLUCK_BF16(a, x) \
  vbfdotq_f32(a, vreinterpretq_bf16_f32(x), vreinterpretq_bf16_f32(x))
POTLUCK_ROUNDS(int8_rounds, int32x4_t, "w", vdupq_n_s32(0), POTLUCK_INT8)
POTLUCK_ROUNDS(bf16_rounds, float32x4_t, "w", vdupq_n_f32(0), POTLUCK_BF16)

}  // namespace i8mm
}  // namespace potluck
