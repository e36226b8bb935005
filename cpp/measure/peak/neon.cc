#include <arm_neon.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace neon {

#define POTLUCK_INT8(a, x) vmlal_s8(a, vget_low_s8(vreinterpretq_s8_s16(x)), \
                                    vget_low_s8(vreinterpretq_s8_s16(x)))
#define POTLUCK_F32(a, x) vfmaq_f32(a, x, x)
POTLUCK_ROUNDS(int8_rounds, int16x8_t, "w", vdupq_n_s16(0), POTLUCK_INT8)
POTLUCK_ROUNDS(f32_rounds, float32x4_t, "w", vdupq_n_f32(0), POTLUCK_F32)

}  // namespace neon
}  // namespace potluck
