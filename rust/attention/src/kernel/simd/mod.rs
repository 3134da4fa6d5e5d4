//! Vectors of the instruction sets the kernels are compiled for.
//!
//! The two matrix products are written with these operations, because whether a compiler turns loops over arrays
//! into the same code depends on the shape of the loop and on the compiler's version. The softmax has simple loops
//! and leaves them to the compiler.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

use crate::element::Bf16;

/// An instruction set. A value of the type is the proof that the processor has it.
///
/// The methods are meant to be inlined into a function compiled for the set; elsewhere they are correct but slow.
pub trait Simd: Copy {
    /// `LANES` numbers.
    type Vector: Copy;
    /// The set for columns that are left over when they are too few for a vector of this one.
    type Narrow: Simd;

    /// Numbers in a vector, 8 or 16.
    const LANES: usize;
    /// Products are fused with the sum they are added to.
    const FMA: bool;
    /// Most rows of a product to handle at once: with [`Simd::MAX_VECTORS`], what the registers hold.
    const MAX_ROWS: usize;
    /// Most vectors across a row of a product to handle at once, 1 or 2.
    const MAX_VECTORS: usize;

    /// The narrower set.
    fn narrow(self) -> Self::Narrow;

    /// All lanes zero.
    fn zero(self) -> Self::Vector;

    /// All lanes `value`.
    fn splat(self, value: f32) -> Self::Vector;

    /// The first `LANES` numbers.
    fn load(self, from: &[f32]) -> Self::Vector;

    /// The first `LANES` numbers, widened.
    fn load_bf16(self, from: &[Bf16]) -> Self::Vector;

    /// Writes the first `LANES` numbers.
    fn store(self, vector: Self::Vector, to: &mut [f32]);

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a · b + c`.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// Asks for the cache line of `address` to be brought to the second-level cache. Any address will do.
    fn prefetch<T>(self, address: *const T);
}
