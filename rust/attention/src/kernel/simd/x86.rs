//! AVX2 with FMA, and AVX-512.

use super::Simd;
use crate::element::Bf16;
use std::arch::x86_64::*;

/// Eight lanes; AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// If the processor has it.
    pub(crate) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }
}

impl Simd for Avx2 {
    type Vector = __m256;
    type Narrow = Avx2;

    const LANES: usize = 8;
    const FMA: bool = true;
    const MAX_ROWS: usize = 4;
    const MAX_VECTORS: usize = 2;

    #[inline(always)]
    fn narrow(self) -> Avx2 {
        self
    }

    #[inline(always)]
    fn zero(self) -> __m256 {
        // SAFETY: `self` exists only where the processor has AVX2 and FMA; so in all of these methods.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: the processor has AVX2.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        let from: &[f32; 8] = first(from);
        // SAFETY: the processor has AVX2; `from` is 8 readable numbers.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16]) -> __m256 {
        let from: &[Bf16; 8] = first(from);
        // SAFETY: the processor has AVX2; `from` is 16 readable bytes.
        unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn store(self, vector: __m256, to: &mut [f32]) {
        let to: &mut [f32; 8] = first_mut(to);
        // SAFETY: the processor has AVX2; `to` is 8 writable numbers.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the processor has AVX2.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the processor has FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        prefetch(address);
    }
}

/// Sixteen lanes; AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// If the processor has it.
    pub(crate) fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        Avx2::detect().filter(|_| found).map(Avx512)
    }
}

impl Simd for Avx512 {
    type Vector = __m512;
    type Narrow = Avx2;

    const LANES: usize = 16;
    const FMA: bool = true;
    const MAX_ROWS: usize = 8;
    const MAX_VECTORS: usize = 2;

    #[inline(always)]
    fn narrow(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        // SAFETY: `self` exists only where the processor has AVX-512 F and BW; so in all of these methods.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: the processor has AVX-512 F.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        let from: &[f32; 16] = first(from);
        // SAFETY: the processor has AVX-512 F; `from` is 16 readable numbers.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[Bf16]) -> __m512 {
        let from: &[Bf16; 16] = first(from);
        // SAFETY: the processor has AVX-512 F; `from` is 32 readable bytes.
        unsafe {
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn store(self, vector: __m512, to: &mut [f32]) {
        let to: &mut [f32; 16] = first_mut(to);
        // SAFETY: the processor has AVX-512 F; `to` is 16 writable numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the processor has AVX-512 F.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the processor has AVX-512 F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn prefetch<T>(self, address: *const T) {
        prefetch(address);
    }
}

#[inline(always)]
fn prefetch<T>(address: *const T) {
    // SAFETY: part of every x86-64; a hint, which does not fault whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
}

#[inline(always)]
fn first<T, const N: usize>(from: &[T]) -> &[T; N] {
    from.first_chunk().expect("a vector's worth of numbers")
}

#[inline(always)]
fn first_mut<T, const N: usize>(to: &mut [T]) -> &mut [T; N] {
    to.first_chunk_mut().expect("room for a vector")
}
