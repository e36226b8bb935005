// Functions composed of lane operations, the same for every instruction set. Included by lanes_*.h.
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

// The polynomial of `exp`: e^r, where r is the remainder of x after subtracting n times ln 2.
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

// v / (1 + exp(-w)).
POTLUCK_LANES F32x16 over_one_plus_exp(F32x16 v, F32x16 w) {
  return div(v, add(splat(1.0f), exp(sub(splat(0.0f), w))));
}

// log(1 + x) within 0.83 ulp (the largest error over a third of all f32) for finite x >= 0; NaN for
// NaN. With u = 1 + x = 2^n m and m from sqrt(1/2) to sqrt(2) it is the polynomial of Cephes for
// log(m) (logf.c, Moshier 1989) and n times ln 2 in two parts, as in `exp`; what rounding u has lost
// of x is added as lost / u (log1p of fdlibm, Sun 1993).
POTLUCK_LANES F32x16 log1p(F32x16 x) {
  const F32x16 one = splat(1.0f);
  const F32x16 u = add(x, one);
  const F32x16 lost = div(sub(x, sub(u, one)), u);
  const I32x16 root_half = splat_i32(0x3f3504f3);
  const I32x16 exponent = shift_right<23>(sub(as_i32(u), root_half));
  const F32x16 n = to_f32(exponent);
  const F32x16 f = sub(as_f32(sub(as_i32(u), shift_left<23>(exponent))), one);
  F32x16 p = splat(7.0376836292e-2f);
  p = fma(p, f, splat(-1.1514610310e-1f));
  p = fma(p, f, splat(1.1676998740e-1f));
  p = fma(p, f, splat(-1.2420140846e-1f));
  p = fma(p, f, splat(1.4249322787e-1f));
  p = fma(p, f, splat(-1.6668057665e-1f));
  p = fma(p, f, splat(2.0000714765e-1f));
  p = fma(p, f, splat(-2.4999993993e-1f));
  p = fma(p, f, splat(3.3333331174e-1f));
  p = fma(p, f, splat(-0.5f));
  const F32x16 rest = fma(mul(p, f), f, fma(n, splat(kLn2Low), lost));
  return fma(n, splat(kLn2High), add(f, rest));
}

// log(1 + e^x) within 1.7 ulp (the largest error over a seventh of all f32); x above 20, NaN for
// NaN.
POTLUCK_LANES F32x16 softplus(F32x16 x) {
  return where_less(splat(20.0f), x, x, log1p(exp(x)));
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

// The same results, bit for bit, for x in [-80, 0], where one factor is sufficient.
POTLUCK_LANES F32x16 exp_of_small(F32x16 x) {
  const F32x16 rounder = splat(kRounder);
  const F32x16 shifted = fma(x, splat(0x1.715476p0f), rounder);
  const F32x16 n = sub(shifted, rounder);
  const F32x16 p = exp_of_rest(x, n);
  // The bits of the rounder are in the upper bits, and are shifted out.
  return mul(p, as_f32(add(shift_left<23>(as_i32(shifted)), splat_i32(127 << 23))));
}

}  // namespace
}  // namespace POTLUCK_ISA
}  // namespace potluck
