// Functions of many lane operations, the same for every instruction set. Included by lanes_*.h.
#pragma once

#include <stdint.h>

namespace potluck {
namespace POTLUCK_ISA {
namespace {

// Adding 1.5 * 2^23 leaves an ulp of 1: the sum is rounded to nearest even, its low bits are the
// integer. For |v| <= 2^22.
constexpr float kRounder = 0x1.8p23f;
constexpr float kLn2High = 0x1.63p-1f;
constexpr float kLn2Low = -0x1.bd0106p-13f;

POTLUCK_LANES I32x16 round_i32(F32x16 v) {
  const F32x16 rounder = splat(kRounder);
  return sub(as_i32(add(v, rounder)), as_i32(rounder));
}

// The polynomial of `exp`: e^r where r is what n times ln 2 leaves of x.
POTLUCK_LANES F32x16 exp_of_rest(F32x16 x, F32x16 n) {
  F32x16 r = fma(n, splat(-kLn2High), x);
  r = fma(n, splat(-kLn2Low), r);
  F32x16 p = splat(1.0f / 5040);
  p = fma(p, r, splat(1.0f / 720));
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  return fma(p, r, splat(1.0f));
}

// e^x within 0.94 ulp (the largest error over all f32); 0 for x < -103.97 and for -inf, inf for
// x > 88.73, NaN for NaN. e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2) / 2, ln 2 in two
// parts (Cody and Waite 1980; the first has 9 bits, so that n * kLn2High is exact). The polynomial
// is Taylor's to degree 7: its remainder is at most 0.3466^8 / 8! = 5e-9, a twelfth of an ulp.
// 2^n is applied in two factors, as n reaches from -150 to 128.
POTLUCK_LANES F32x16 exp(F32x16 x) {
  const F32x16 clamped = min(splat(89.0f), max(splat(-104.0f), x));
  const F32x16 rounder = splat(kRounder);
  const F32x16 shifted = fma(clamped, splat(0x1.715476p0f), rounder);
  const F32x16 n = sub(shifted, rounder);
  const F32x16 p = exp_of_rest(clamped, n);
  // 1024 makes the shift by one round down for negative n, too.
  const I32x16 biased = add(sub(as_i32(shifted), as_i32(rounder)), splat_i32(1024));
  const I32x16 half = sub(shift_right<1>(biased), splat_i32(512));
  const I32x16 rest = sub(sub(biased, splat_i32(1024)), half);
  const F32x16 factor = as_f32(shift_left<23>(add(half, splat_i32(127))));
  const F32x16 rest_factor = as_f32(shift_left<23>(add(rest, splat_i32(127))));
  return mul(mul(p, factor), rest_factor);
}

// tanh within 1.4 ulp (the largest error of 20 million numbers); NaN for NaN. It is
// 1 - 2 / (e^2x + 1) where that does not cancel, and for |x| < 0.625 the polynomial of Cephes
// (tanhf.c, Moshier 1989).
POTLUCK_LANES F32x16 tanh(F32x16 x) {
  const F32x16 one = splat(1.0f);
  const F32x16 quotient = div(splat(2.0f), add(exp(add(x, x)), one));
  const F32x16 square = mul(x, x);
  F32x16 p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const F32x16 near_zero = fma(mul(p, square), x, x);
  return where_less(square, splat(0.625f * 0.625f), near_zero, sub(one, quotient));
}

// cap * tanh(x / cap).
POTLUCK_LANES F32x16 capped(F32x16 x, float cap) {
  return mul(tanh(div(x, splat(cap))), splat(cap));
}

// The same bits for x in [-80, 0], where one factor is enough.
POTLUCK_LANES F32x16 exp_of_small(F32x16 x) {
  const F32x16 rounder = splat(kRounder);
  const F32x16 shifted = fma(x, splat(0x1.715476p0f), rounder);
  const F32x16 n = sub(shifted, rounder);
  const F32x16 p = exp_of_rest(x, n);
  // The bits of the rounder are in the upper ones, and shifted out.
  return mul(p, as_f32(add(shift_left<23>(as_i32(shifted)), splat_i32(127 << 23))));
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
