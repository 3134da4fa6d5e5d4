//! Cutting a batch into tasks that can be done in any order.
//!
//! The cut depends on each row alone, never on the number of threads or on the other rows, and so do the results.

use crate::batch::{Row, first_key};
use crate::element::Element;
use crate::kernel::{State, Terms, Tile};
use crate::layout::Layout;

/// Rows (tokens times query heads of a group) of a tile: enough to make reading the keys and values once per tile
/// cheap beside the arithmetic.
const TILE_ROWS: usize = 64;

/// Keys of one part of a long row that has a single tile; a multiple of the kernel's chunk.
const PART_KEYS: usize = 1024;

/// A tile whose keys are all looked at in one go.
pub(crate) struct Whole<'a, E> {
    pub(crate) tile: Tile<'a, E>,
    pub(crate) outputs: Outputs<'a, E>,
}

/// A tile whose keys are cut into parts.
pub(crate) struct Split<'a, E> {
    pub(crate) parts: Vec<Part<'a, E>>,
    pub(crate) outputs: Outputs<'a, E>,
}

/// One part of a [`Split`], and what came out of it.
pub(crate) struct Part<'a, E> {
    pub(crate) tile: Tile<'a, E>,
    pub(crate) state: State,
}

/// Where the results of a tile go.
pub(crate) struct Outputs<'a, E> {
    /// For each token its heads of the group, `[group][head_size]`.
    tokens: Vec<&'a mut [E]>,
    /// Sink logits of the heads of the group.
    sinks: Option<&'a [f32]>,
}

impl<E: Element> Outputs<'_, E> {
    pub(crate) fn write(&mut self, state: &State) {
        state.finish(self.sinks, &mut self.tokens);
    }
}

/// All tasks of a batch.
pub(crate) struct Plan<'a, E> {
    pub(crate) whole: Vec<Whole<'a, E>>,
    pub(crate) split: Vec<Split<'a, E>>,
}

/// What all rows of a call have in common.
pub(crate) struct Call<'a, E> {
    pub(crate) layout: &'a Layout,
    pub(crate) cache: &'a [E],
    pub(crate) layer: usize,
    pub(crate) queries: &'a [E],
    pub(crate) num_heads: usize,
    pub(crate) terms: Terms,
    pub(crate) sinks: Option<&'a [f32]>,
}

impl<'a, E: Element> Call<'a, E> {
    /// Cuts `rows` into tasks; `out`, `[tokens][num_heads][head_size]`, is shared out among them.
    pub(crate) fn plan(&self, rows: &[Row<'a>], mut out: &'a mut [E]) -> Plan<'a, E> {
        let mut plan = Plan {
            whole: Vec::new(),
            split: Vec::new(),
        };
        let group = self.num_heads / self.layout.shape().num_kv_heads;
        let tile_tokens = (TILE_ROWS / group).max(1);
        for row in rows {
            for start in row.tokens.clone().step_by(tile_tokens) {
                let num_tokens = tile_tokens.min(row.tokens.end - start);
                let (mine, rest) =
                    std::mem::take(&mut out).split_at_mut(num_tokens * self.token_stride());
                out = rest;
                let whole = row.tokens.len() > tile_tokens;
                self.plan_tile(row, start, num_tokens, whole, mine, &mut plan);
            }
        }
        plan
    }

    fn token_stride(&self) -> usize {
        self.num_heads * self.layout.shape().head_size
    }

    /// The tasks of the tokens from `start` on, one or more for each key/value head.
    fn plan_tile(
        &self,
        row: &Row<'a>,
        start: usize,
        num_tokens: usize,
        whole: bool,
        out: &'a mut [E],
        plan: &mut Plan<'a, E>,
    ) {
        let kv_heads = self.layout.shape().num_kv_heads;
        let group = self.num_heads / kv_heads;
        let group_elements = group * self.layout.shape().head_size;
        let mut tokens: Vec<Vec<&mut [E]>> = (0..kv_heads)
            .map(|_| Vec::with_capacity(num_tokens))
            .collect();
        for (index, heads) in out.chunks_exact_mut(group_elements).enumerate() {
            tokens[index % kv_heads].push(heads);
        }
        let first_position = row.first_position + (start - row.tokens.start);
        let stretch = first_key(first_position, &self.terms)..first_position + num_tokens;
        for (head, tokens) in tokens.into_iter().enumerate() {
            let tile = |stretch| Tile {
                cache: self.layout.head(self.cache, self.layer, head),
                table: row.table,
                queries: &self.queries[start * self.token_stride() + head * group_elements..],
                token_stride: self.token_stride(),
                num_tokens,
                group,
                first_position,
                stretch,
                terms: self.terms,
            };
            let sinks = self
                .sinks
                .map(|sinks| &sinks[head * group..(head + 1) * group]);
            let outputs = Outputs { tokens, sinks };
            if whole || stretch.len() <= PART_KEYS {
                plan.whole.push(Whole {
                    tile: tile(stretch.clone()),
                    outputs,
                });
                continue;
            }
            // Cut at multiples of the part's length, so that a row that grows by a token keeps its cuts.
            let starts = (stretch.start / PART_KEYS * PART_KEYS..stretch.end).step_by(PART_KEYS);
            let parts = starts.map(|start| {
                let part = start.max(stretch.start)..(start + PART_KEYS).min(stretch.end);
                Part {
                    tile: tile(part),
                    state: State::default(),
                }
            });
            plan.split.push(Split {
                parts: parts.collect(),
                outputs,
            });
        }
    }
}
