//! What the online softmax carries from chunk to chunk, and from one split of a long context to the next.

use super::math::exp;
use super::simd::Portable;
use crate::element::Element;

/// Running maximum, total and weighted sums of the rows of one query tile.
///
/// For the keys seen so far, `max` is the largest score, `total` the sum of `exp(score − max)` and `sums` the same
/// sum weighted with the values. Two states over disjoint keys merge into the state over both.
#[derive(Default)]
pub(crate) struct State {
    head_size: usize,
    pub(super) max: Vec<f32>,
    pub(super) total: Vec<f32>,
    /// `[rows][head_size]`.
    pub(super) sums: Vec<f32>,
}

impl State {
    /// Forgets everything: no keys seen.
    pub(crate) fn reset(&mut self, rows: usize, head_size: usize) {
        fill(&mut self.max, rows, f32::NEG_INFINITY);
        fill(&mut self.total, rows, 0.0);
        fill(&mut self.sums, rows * head_size, 0.0);
        self.head_size = head_size;
    }

    /// Adds what `other` saw, over the same rows.
    pub(crate) fn merge(&mut self, other: &State) {
        let head_size = self.head_size;
        for row in 0..self.max.len() {
            let max = self.max[row].max(other.max[row]);
            let (ours, theirs) = (shrink(self.max[row], max), shrink(other.max[row], max));
            self.max[row] = max;
            self.total[row] = self.total[row] * ours + other.total[row] * theirs;
            let sums = &mut self.sums[row * head_size..][..head_size];
            for (sum, other) in sums.iter_mut().zip(&other.sums[row * head_size..]) {
                *sum = *sum * ours + other * theirs;
            }
        }
    }

    /// Divides by the totals and writes the outputs.
    ///
    /// `sinks` holds one logit for each query head of the group: a key without a value. Each of `outputs` takes one
    /// token, `[group][head_size]`; rows are in the same order.
    pub(crate) fn finish<E: Element>(&self, sinks: Option<&[f32]>, outputs: &mut [&mut [E]]) {
        let rows = outputs.iter_mut().flat_map(|token| {
            let heads = token.chunks_exact_mut(self.head_size);
            heads.enumerate()
        });
        for (row, (head, output)) in rows.enumerate() {
            let sink = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            let max = self.max[row].max(sink);
            let ours = shrink(self.max[row], max);
            // Without a sink the total is left alone even where the scores are all −∞.
            let total = self.total[row] * ours
                + if sinks.is_some() {
                    shrink(sink, max)
                } else {
                    0.0
                };
            let factor = ours / total;
            for (output, sum) in output.iter_mut().zip(&self.sums[row * self.head_size..]) {
                *output = E::narrow(sum * factor);
            }
        }
    }
}

/// The factor that moves sums relative to `from` to the larger maximum `to`.
fn shrink(from: f32, to: f32) -> f32 {
    if from == to {
        1.0
    } else {
        exp::<Portable>(from - to)
    }
}

fn fill(vec: &mut Vec<f32>, len: usize, value: f32) {
    vec.clear();
    vec.resize(len, value);
}
