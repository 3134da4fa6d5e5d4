//! What every processor of the target has.

use super::Simd;
use crate::element::{Bf16, Element};
use crate::kernel::math::mul_add;

/// Arrays of eight, in whatever vectors the compiler finds.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type Vector = [f32; 8];
    type Narrow = Portable;

    const LANES: usize = 8;
    // Without the instruction `f32::mul_add` is a slow library call.
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    const MAX_ROWS: usize = 4;
    const MAX_VECTORS: usize = 1;

    #[inline(always)]
    fn narrow(self) -> Portable {
        self
    }

    #[inline(always)]
    fn zero(self) -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> [f32; 8] {
        *first(from)
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16]) -> [f32; 8] {
        first(from).map(Bf16::widen)
    }

    #[inline(always)]
    fn store(self, vector: [f32; 8], to: &mut [f32]) {
        to[..8].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|lane| mul_add::<Portable>(a[lane], b[lane], c[lane]))
    }

    #[inline(always)]
    fn prefetch<T>(self, _address: *const T) {}
}

#[inline(always)]
fn first<T>(from: &[T]) -> &[T; 8] {
    from.first_chunk().expect("a vector's worth of numbers")
}
