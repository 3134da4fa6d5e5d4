//! One step of the online softmax.

use super::chunk::{CHUNK, Scores};
use super::math::{exp, tanh};
use super::simd::Simd;
use std::ops::Range;

/// Turns a row's scores for one chunk into weights relative to the new running maximum.
///
/// Updates the row's running maximum and total, and returns the factor by which its earlier sums shrink. Scores
/// outside `visible` may be anything and get weight zero.
#[inline(always)]
pub(crate) fn step<S: Simd>(
    scores: &mut Scores,
    visible: Range<usize>,
    softcap: Option<f32>,
    running_max: &mut f32,
    running_total: &mut f32,
) -> f32 {
    let scores = &mut scores.0;
    if let Some(cap) = softcap {
        for score in scores.iter_mut() {
            *score = cap * tanh::<S>(*score / cap);
        }
    }
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let new_max = max(scores).max(*running_max);
    // While every score so far is −∞, subtracting the maximum would give NaN where the weight is zero.
    let origin = if new_max == f32::NEG_INFINITY {
        0.0
    } else {
        new_max
    };
    for score in scores.iter_mut() {
        *score = exp::<S>(*score - origin);
    }
    let shrink = exp::<S>(*running_max - origin);
    *running_max = new_max;
    *running_total = *running_total * shrink + sum(scores);
    shrink
}

/// Lanes of a reduction: enough for the widest vectors, and for two of the narrower ones to overlap.
const LANES: usize = 16;

/// The largest number; NaN is passed over, for it reaches the total by way of its weight.
#[inline(always)]
fn max(scores: &[f32; CHUNK]) -> f32 {
    reduce(scores, |a, b| if b > a { b } else { a }, f32::NEG_INFINITY)
}

#[inline(always)]
fn sum(weights: &[f32; CHUNK]) -> f32 {
    reduce(weights, |a, b| a + b, 0.0)
}

/// Folds lane by lane, then the lanes in halves.
#[inline(always)]
fn reduce(numbers: &[f32; CHUNK], fold: impl Fn(f32, f32) -> f32, start: f32) -> f32 {
    let mut lanes = [start; LANES];
    for part in numbers.chunks_exact(LANES) {
        for (lane, &number) in lanes.iter_mut().zip(part) {
            *lane = fold(*lane, number);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = fold(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}
