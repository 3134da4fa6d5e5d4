//! A run of at most 64 tokens of one sequence, as the pieces of cache blocks it lies in.

use crate::element::Element;
use crate::layout::{GRAIN, HeadCache};

/// Tokens that share one softmax update.
///
/// Long enough to spread the cost of an update, short enough that one chunk's keys and values stay in the first two
/// cache levels; partial sums over 64 terms also keep the rounding error of long contexts low.
pub(crate) const CHUNK: usize = 64;

/// One row's scores, later weights, for the tokens of a chunk.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Scores(pub(crate) [f32; CHUNK]);

/// The part of a chunk that lies in one block.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a, E> {
    /// The block's keys, `[head_size][block_size]`.
    pub(crate) keys: &'a [E],
    /// The values from this piece's first token on, `[tokens][head_size]`.
    pub(crate) values: &'a [E],
    /// First token within the block, a multiple of [`GRAIN`].
    pub(crate) offset: usize,
    /// First token within the chunk.
    pub(crate) at: usize,
    /// Tokens, at most up to the end of the block.
    pub(crate) len: usize,
}

/// Consecutive tokens of a sequence and where they lie.
pub(crate) struct Chunk<'a, E> {
    /// Position of the first token in the sequence, a multiple of [`GRAIN`].
    pub(crate) start: usize,
    /// Tokens.
    pub(crate) len: usize,
    block_size: usize,
    pieces: [Piece<'a, E>; CHUNK / GRAIN],
    num_pieces: usize,
}

impl<'a, E: Element> Chunk<'a, E> {
    /// The up to [`CHUNK`] tokens from `start` on, ending before `end`.
    ///
    /// `start` is a multiple of [`GRAIN`]; `table` holds a block for every position below `end`.
    #[inline(always)]
    pub(crate) fn gather(
        cache: &HeadCache<'a, E>,
        table: &[i32],
        start: usize,
        end: usize,
    ) -> Self {
        debug_assert!(start.is_multiple_of(GRAIN) && start < end);
        let empty = Piece {
            keys: &[],
            values: &[],
            offset: 0,
            at: 0,
            len: 0,
        };
        let block_size = cache.block_size();
        let len = CHUNK.min(end - start);
        let mut chunk = Chunk {
            start,
            len,
            block_size,
            pieces: [empty; CHUNK / GRAIN],
            num_pieces: 0,
        };
        let mut at = 0;
        while at < chunk.len {
            let position = start + at;
            let offset = position % block_size;
            let len = (block_size - offset).min(chunk.len - at);
            let (keys, values) = cache.block(table[position / block_size] as usize);
            let values = &values[offset * cache.head_size()..];
            chunk.pieces[chunk.num_pieces] = Piece {
                keys,
                values,
                offset,
                at,
                len,
            };
            chunk.num_pieces += 1;
            at += len;
        }
        chunk
    }

    #[inline(always)]
    pub(crate) fn pieces(&self) -> &[Piece<'a, E>] {
        &self.pieces[..self.num_pieces]
    }

    /// Where the keys of the piece with this index start, if it is a whole block and its keys thus one run.
    #[inline(always)]
    pub(crate) fn whole_block(&self, index: usize) -> Option<*const E> {
        let piece = self.pieces().get(index)?;
        (piece.len == self.block_size).then_some(piece.keys.as_ptr())
    }
}
