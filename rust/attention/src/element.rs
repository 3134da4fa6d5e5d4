//! The number formats a cache can hold.

/// A number as it lies in the cache, in queries and in outputs. Arithmetic is always done in `f32`.
///
/// Sealed: the kernels are compiled for exactly these formats.
pub trait Element: Copy + Send + Sync + sealed::Sealed + 'static {
    /// Name used in messages.
    const NAME: &'static str;

    /// The value as `f32`, exact.
    fn widen(self) -> f32;

    /// The nearest value of this format; ties go to the even one.
    fn narrow(value: f32) -> Self;
}

mod sealed {
    use super::Bf16;
    use crate::kernel::Simd;

    pub trait Sealed: Sized {
        /// The first `S::LANES` numbers, widened.
        fn load<S: Simd>(simd: S, from: &[Self]) -> S::Vector;
    }

    impl Sealed for f32 {
        #[inline(always)]
        fn load<S: Simd>(simd: S, from: &[f32]) -> S::Vector {
            simd.load(from)
        }
    }

    impl Sealed for Bf16 {
        #[inline(always)]
        fn load<S: Simd>(simd: S, from: &[Bf16]) -> S::Vector {
            simd.load_bf16(from)
        }
    }
}

impl Element for f32 {
    const NAME: &'static str = "float32";

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

/// A bfloat16: the upper half of an `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Element for Bf16 {
    const NAME: &'static str = "bfloat16";

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Bf16 {
        let bits = value.to_bits();
        // Rounding would carry a NaN with a long payload into infinity; the quiet bit keeps it one.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        Bf16(if value.is_nan() { quiet } else { rounded } as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bf16, Element};

    #[test]
    fn every_bf16_survives_widening_and_narrowing() {
        for bits in 0..=u16::MAX {
            let there = Bf16(bits).widen();
            let back = Bf16::narrow(there);
            assert!(back.0 == bits || there.is_nan() && back.widen().is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_and_ties_to_even() {
        // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7; 1 + 3·2^-8 between 1 + 2^-7 and 1 + 2^-6.
        let ulp = 2f32.powi(-7);
        assert_eq!(Bf16::narrow(1.0 + ulp / 2.0).widen(), 1.0);
        assert_eq!(Bf16::narrow(1.0 + ulp * 0.51).widen(), 1.0 + ulp);
        assert_eq!(Bf16::narrow(1.0 + ulp * 1.5).widen(), 1.0 + 2.0 * ulp);
        assert_eq!(Bf16::narrow(-1.0 - ulp * 1.49).widen(), -1.0 - ulp);
        assert_eq!(Bf16::narrow(f32::MAX).widen(), f32::INFINITY);
    }

    #[test]
    fn a_nan_with_only_low_payload_bits_stays_a_nan() {
        assert!(Bf16::narrow(f32::from_bits(0x7f80_0001)).widen().is_nan());
        assert!(Bf16::narrow(f32::from_bits(0xffff_ffff)).widen().is_nan());
    }
}
