//! Scalar functions that the compiler turns into vector code where they are inlined in a loop.
//!
//! No branches, no calls and no integer conversions, each of which would keep a loop scalar.

use super::simd::Simd;

/// `a · b + c`, fused where `S::FMA` says the processor has it.
///
/// Without the instruction `f32::mul_add` is a slow library call, hence the switch.
#[inline(always)]
pub(crate) fn mul_add<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Below this `exp` is under the smallest normal `f32` and is taken as zero.
const EXP_UNDERFLOW: f32 = -87.0;

/// For x in [−87, 88]: `(p, s)` with `eˣ = s · (1 + p)`, s a power of two and |p| < 0.42.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2, ln 2 in two parts, the first short enough for n times it to be exact (Cody and Waite), then the
/// Taylor series of eʳ − 1 up to r⁷, whose remainder is under 6e-9.
#[inline(always)]
fn exp_parts<S: Simd>(x: f32) -> (f32, f32) {
    // Adding 1.5·2²³ rounds to an integer and leaves it in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = mul_add::<S>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<S>(n, -LN_2_LOW, mul_add::<S>(n, -LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0] {
        p = mul_add::<S>(p, r, 1.0 / factorial);
    }
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    (p * r, scale)
}

/// `eˣ` for x ≤ 88, to 2 units in the last place; 0 below −87 and at −∞, NaN at NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: f32) -> f32 {
    let (p, scale) = exp_parts::<S>(x);
    let value = mul_add::<S>(scale, p, scale);
    if x < EXP_UNDERFLOW { 0.0 } else { value }
}

/// `tanh x`, to 4 units in the last place also near 0; ±1 at ±∞, NaN at NaN.
///
/// With u = e^(−2|x|) − 1, tanh |x| = −u / (2 + u); u is formed without cancellation.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(x: f32) -> f32 {
    let doubled = -2.0 * x.abs();
    // e^−40 is far below the precision of 1 already; comparing this way round keeps a NaN.
    let bounded = if doubled < -40.0 { -40.0 } else { doubled };
    let (p, scale) = exp_parts::<S>(bounded);
    let u = mul_add::<S>(scale, p, scale - 1.0);
    (-u / (2.0 + u)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::{Simd, exp, tanh};
    use crate::kernel::Portable;

    fn ulps(got: f32, exact: f64) -> f64 {
        let nearest = (exact as f32).abs();
        (f64::from(got) - exact).abs() / f64::from(nearest.next_up() - nearest)
    }

    fn assert_accurate<S: Simd>() {
        for step in 0..=870_000 {
            let x = -87.0 + step as f32 * 1e-4;
            assert!(ulps(exp::<S>(x), f64::from(x).exp()) <= 2.0, "exp({x})");
        }
        for step in -2000..=2000 {
            let x = step as f32 * 5e-3;
            for x in [x, x * 1e-6] {
                assert!(ulps(tanh::<S>(x), f64::from(x).tanh()) <= 4.0, "tanh({x})");
            }
        }
    }

    #[test]
    fn exp_is_within_two_ulps_and_tanh_within_four() {
        assert_accurate::<Portable>();
        // The functions use no vectors: the type alone selects fused products.
        #[cfg(target_arch = "x86_64")]
        assert_accurate::<crate::kernel::Avx2>();
    }

    #[test]
    fn exp_has_the_right_limits() {
        assert_eq!(exp::<Portable>(0.0), 1.0);
        assert_eq!(exp::<Portable>(-88.0), 0.0);
        assert_eq!(exp::<Portable>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<Portable>(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_has_the_right_limits() {
        assert_eq!(tanh::<Portable>(f32::INFINITY), 1.0);
        assert_eq!(tanh::<Portable>(f32::NEG_INFINITY), -1.0);
        assert!(tanh::<Portable>(f32::NAN).is_nan());
    }
}
