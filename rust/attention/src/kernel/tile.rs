//! One query tile: a few tokens of one sequence, times the query heads that share one key/value head.

use super::chunk::{CHUNK, Chunk, Scores};
use super::products::{Keys, Values, score, weigh};
use super::shapes::{MAX_ROWS, call_product, row_groups, strips};
use super::simd::Simd;
use super::{State, softmax};
use crate::element::Element;
use crate::layout::{GRAIN, HeadCache};
use std::ops::Range;

/// What shapes the scores, the same for all tiles of a call.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    /// Keys that a token sees, itself included; `usize::MAX` for all before it.
    pub(crate) window: usize,
}

/// A query tile and the stretch of its sequence to look at.
///
/// Its rows are ordered by token, then by head within the group.
pub(crate) struct Tile<'a, E> {
    pub(crate) cache: HeadCache<'a, E>,
    /// Blocks of the sequence; covers `stretch`.
    pub(crate) table: &'a [i32],
    /// From the tile's first token and head on; tokens lie `token_stride` apart.
    pub(crate) queries: &'a [E],
    pub(crate) token_stride: usize,
    pub(crate) num_tokens: usize,
    /// Query heads per key/value head.
    pub(crate) group: usize,
    /// Position of the first token in its sequence.
    pub(crate) first_position: usize,
    /// Positions of the keys to look at; starts at a multiple of [`GRAIN`].
    pub(crate) stretch: Range<usize>,
    pub(crate) terms: Terms,
}

impl<'a, E: Element> Tile<'a, E> {
    /// An upper bound of the scores it takes.
    pub(crate) fn num_scores(&self) -> usize {
        self.num_rows() * self.stretch.len()
    }

    fn num_rows(&self) -> usize {
        self.num_tokens * self.group
    }

    /// The chunk from `start` on, if the stretch goes that far.
    #[inline(always)]
    fn chunk(&self, start: usize) -> Option<Chunk<'a, E>> {
        let end = self.stretch.end;
        (start < end).then(|| Chunk::gather(&self.cache, self.table, start, end))
    }

    /// The keys of a chunk that a token sees, counted within the chunk.
    fn visible(&self, token: usize, chunk: &Chunk<'_, E>) -> Range<usize> {
        let end = self.first_position + token + 1;
        let start = end.saturating_sub(self.terms.window);
        let within = |position: usize| position.saturating_sub(chunk.start).min(chunk.len);
        within(start)..within(end)
    }

    /// Whether every token sees the whole chunk.
    fn is_open(&self, chunk: &Chunk<'_, E>) -> bool {
        self.visible(0, chunk).end == chunk.len
            && self.visible(self.num_tokens - 1, chunk).start == 0
    }
}

/// Rows of a tile that see the same keys of a chunk.
struct Band {
    rows: Range<usize>,
    visible: Range<usize>,
}

/// Buffers of one worker, reused from tile to tile.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Scaled queries; each group of rows as `[head_size][rows of the group]`.
    queries: Vec<f32>,
    /// One entry per row.
    scores: Vec<Scores>,
}

/// Sets `state` to what the tile's rows see in `tile.stretch`.
#[inline(always)]
pub(crate) fn accumulate<E: Element, S: Simd>(
    simd: S,
    tile: &Tile<'_, E>,
    scratch: &mut Scratch,
    state: &mut State,
) {
    let num_rows = tile.num_rows();
    state.reset(num_rows, tile.cache.head_size());
    load_queries::<E, S>(tile, scratch);
    let mut upcoming = tile.chunk(tile.stretch.start);
    while let Some(chunk) = upcoming {
        upcoming = tile.chunk(chunk.start + chunk.len);
        score_chunk(simd, tile, &chunk, scratch);
        let open = tile.is_open(&chunk);
        let band_rows = if open { num_rows } else { tile.group };
        for first in (0..num_rows).step_by(band_rows) {
            let visible = if open {
                0..chunk.len
            } else {
                tile.visible(first / tile.group, &chunk)
            };
            if !visible.is_empty() {
                let band = Band {
                    rows: first..first + band_rows,
                    visible,
                };
                weigh_chunk(simd, tile, &chunk, upcoming.as_ref(), band, scratch, state);
            }
        }
    }
}

#[inline(always)]
fn load_queries<E: Element, S: Simd>(tile: &Tile<'_, E>, scratch: &mut Scratch) {
    let head_size = tile.cache.head_size();
    let num_rows = tile.num_rows();
    scratch.scores.resize(num_rows, Scores([0.0; CHUNK]));
    scratch.queries.resize(num_rows * head_size, 0.0);
    for rows in row_groups::<S>(0..num_rows) {
        let packed = &mut scratch.queries[rows.start * head_size..rows.end * head_size];
        for (column, row) in rows.clone().enumerate() {
            let start = row / tile.group * tile.token_stride + row % tile.group * head_size;
            let query = &tile.queries[start..start + head_size];
            for (packed, &element) in packed.chunks_exact_mut(rows.len()).zip(query) {
                packed[column] = element.widen() * tile.terms.scale;
            }
        }
    }
}

/// Scores of all rows against all tokens of a chunk, seen or not.
#[inline(always)]
fn score_chunk<E: Element, S: Simd>(
    simd: S,
    tile: &Tile<'_, E>,
    chunk: &Chunk<'_, E>,
    scratch: &mut Scratch,
) {
    let (head_size, block_size) = (tile.cache.head_size(), tile.cache.block_size());
    for piece in chunk.pieces() {
        for strip in strips::<S>(piece.len.next_multiple_of(GRAIN)) {
            for rows in row_groups::<S>(0..tile.num_rows()) {
                // Once is enough: with the first rows.
                let ahead =
                    (rows.start == 0).then(|| piece.values[strip.start * head_size..].as_ptr());
                let keys = Keys {
                    block: piece.keys,
                    block_size,
                    first: piece.offset + strip.start,
                    ahead,
                };
                let queries = &scratch.queries[rows.start * head_size..rows.end * head_size];
                let scores = &mut scratch.scores[rows];
                let (rows, columns, to) = (scores.len(), strip.len(), piece.at + strip.start);
                call_product!(
                    score::<E, S>,
                    rows,
                    columns,
                    simd,
                    queries,
                    keys,
                    scores,
                    to
                );
            }
        }
    }
}

/// One softmax step of a band, and its weighted values.
#[inline(always)]
fn weigh_chunk<E: Element, S: Simd>(
    simd: S,
    tile: &Tile<'_, E>,
    chunk: &Chunk<'_, E>,
    next: Option<&Chunk<'_, E>>,
    band: Band,
    scratch: &mut Scratch,
    state: &mut State,
) {
    let head_size = tile.cache.head_size();
    for rows in row_groups::<S>(band.rows) {
        let next = next.filter(|_| rows.start == 0);
        let mut shrink = [0.0; MAX_ROWS];
        for (row, shrink) in rows.clone().zip(&mut shrink) {
            let (max, total) = (&mut state.max[row], &mut state.total[row]);
            let scores = &mut scratch.scores[row];
            *shrink =
                softmax::step::<S>(scores, band.visible.clone(), tile.terms.softcap, max, total);
        }
        let sums = &mut state.sums[rows.start * head_size..rows.end * head_size];
        let weights = &scratch.scores[rows];
        for strip in strips::<S>(head_size) {
            let values = Values {
                chunk,
                visible: band.visible.clone(),
                head_size,
                first: strip.start,
                next,
            };
            let (rows, columns) = (weights.len(), strip.len());
            call_product!(
                weigh::<E, S>,
                rows,
                columns,
                simd,
                weights,
                values,
                &shrink,
                sums
            );
        }
    }
}
