#include <arm_neon.h>

#include "measure/peak/rounds.h"

namespace potluck {
namespace i8mm {

#define POTLUCK_INT8(a, x) vmmlaq_s32(a, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(x))
POTLUCK_ROUNDS(int8_rounds, int32x4_t, "w", vdupq_n_s32(0), POTLUCK_INT8)

}  // namespace i8mm
}  // namespace potluck
