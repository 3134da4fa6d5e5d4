//! The two matrix products of attention, over pieces of cache blocks.
//!
//! Both keep R × V vectors of sums in registers: R rows of the query tile by V vectors of neighbouring numbers of
//! the cache. Both prefetch what is read next while they compute: a block's values during the product with its keys,
//! the keys of the next chunk during the product with the values. The hardware's own prefetching stops at the end of
//! every block.

use super::chunk::{CHUNK, Chunk, Scores};
use super::simd::Simd;
use crate::element::Element;
use std::ops::Range;

/// Neighbouring tokens of one block.
pub(crate) struct Keys<'a, E> {
    /// The block's keys, `[head_size][block_size]`.
    pub(crate) block: &'a [E],
    pub(crate) block_size: usize,
    /// First token within the block.
    pub(crate) first: usize,
    /// Where to prefetch as many numbers as are read here.
    pub(crate) ahead: Option<*const E>,
}

/// Scores of R rows against the first V vectors of `keys`, written to each row from token `to` on.
///
/// `queries` is `[head_size][R]`.
#[inline(always)]
pub(crate) fn score<E: Element, S: Simd, const R: usize, const V: usize>(
    simd: S,
    queries: &[f32],
    keys: Keys<'_, E>,
    scores: &mut [Scores],
    to: usize,
) {
    let Keys {
        block,
        block_size,
        first,
        ahead,
    } = keys;
    let mut even = [[simd.zero(); V]; R];
    let mut odd = [[simd.zero(); V]; R];
    // Each addition waits for the one before it to the same sum: few sums are doubled to fill the wait.
    let double = 4 * R * V <= S::MAX_ROWS * S::MAX_VECTORS;
    let width = V * S::LANES;
    // A head size is a multiple of 8, so that dimensions pair up.
    let pairs = queries
        .chunks_exact(2 * R)
        .zip(block.chunks_exact(2 * block_size));
    for (pair, (queries, keys)) in pairs.enumerate() {
        if let Some(ahead) = ahead {
            prefetch(simd, ahead, 2 * pair * width..2 * (pair + 1) * width);
        }
        add_products(simd, load(simd, &keys[first..]), |r| queries[r], &mut even);
        let odd = if double { &mut odd } else { &mut even };
        add_products(
            simd,
            load(simd, &keys[block_size + first..]),
            |r| queries[R + r],
            odd,
        );
    }
    for (row, (even, odd)) in scores.iter_mut().zip(even.iter().zip(&odd)) {
        for v in 0..V {
            simd.store(simd.add(even[v], odd[v]), &mut row.0[to + v * S::LANES..]);
        }
    }
}

/// Neighbouring dimensions of the values of a chunk.
pub(crate) struct Values<'a, E> {
    pub(crate) chunk: &'a Chunk<'a, E>,
    /// Tokens of the chunk that count. The others are not read: a weight of zero would still turn a NaN in the cache
    /// into one in the sum.
    pub(crate) visible: Range<usize>,
    pub(crate) head_size: usize,
    /// First dimension.
    pub(crate) first: usize,
    /// The chunk whose keys to prefetch.
    pub(crate) next: Option<&'a Chunk<'a, E>>,
}

/// Shrinks R rows of sums and adds the weighted first V vectors of `values`.
///
/// `sums` is `[R][head_size]`.
#[inline(always)]
pub(crate) fn weigh<E: Element, S: Simd, const R: usize, const V: usize>(
    simd: S,
    weights: &[Scores],
    values: Values<'_, E>,
    shrink: &[f32],
    sums: &mut [f32],
) {
    let Values {
        chunk,
        visible,
        head_size,
        first,
        next,
    } = values;
    let weights: &[Scores; R] = weights.first_chunk().expect("R rows");
    // Summed apart from what is there already, which keeps the rounding error of long contexts low.
    let mut new = [[simd.zero(); V]; R];
    for (index, piece) in chunk.pieces().iter().enumerate() {
        let tokens = visible.start.max(piece.at)..visible.end.min(piece.at + piece.len);
        if tokens.is_empty() {
            continue;
        }
        let ahead = next.and_then(|next| next.whole_block(index));
        let rows = &piece.values[(tokens.start - piece.at) * head_size..];
        for (token, row) in tokens.zip(rows.chunks_exact(head_size)) {
            if let Some(ahead) = ahead {
                let start = (token - piece.at) * head_size + first;
                prefetch(simd, ahead, start..start + V * S::LANES);
            }
            // The remainder changes nothing, but shows the compiler that the index is in bounds.
            add_products(
                simd,
                load(simd, &row[first..]),
                |r| weights[r].0[token % CHUNK],
                &mut new,
            );
        }
    }
    for ((row, new), &shrink) in sums.chunks_exact_mut(head_size).zip(&new).zip(shrink) {
        for (v, &new) in new.iter().enumerate() {
            let sum = &mut row[first + v * S::LANES..];
            simd.store(simd.mul_add(simd.load(sum), simd.splat(shrink), new), sum);
        }
    }
}

#[inline(always)]
fn load<E: Element, S: Simd, const V: usize>(simd: S, from: &[E]) -> [S::Vector; V] {
    std::array::from_fn(|v| E::load(simd, &from[v * S::LANES..]))
}

/// Adds the outer product of R factors and V vectors.
#[inline(always)]
fn add_products<S: Simd, const R: usize, const V: usize>(
    simd: S,
    vectors: [S::Vector; V],
    factor: impl Fn(usize) -> f32,
    sums: &mut [[S::Vector; V]; R],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        let factor = simd.splat(factor(r));
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            *sum = simd.mul_add(factor, vector, *sum);
        }
    }
}

/// Asks for the cache lines of a range of numbers counted from `origin`.
#[inline(always)]
fn prefetch<E: Element, S: Simd>(simd: S, origin: *const E, range: Range<usize>) {
    const LINE_BYTES: usize = 64;
    for at in range.step_by(LINE_BYTES / size_of::<E>()) {
        simd.prefetch(origin.wrapping_add(at));
    }
}
