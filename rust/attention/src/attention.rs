//! Paged attention over one cache.

use crate::batch::{Batch, ScoreTerms, check_len};
use crate::element::Element;
use crate::error::AttentionError;
use crate::isa::Isa;
use crate::kernel::{Scratch, State, Tile};
use crate::layout::{CacheShape, Layout, Slot};
use crate::plan::{Call, Part, Split, Whole};
use crate::workers::Workers;
use std::cmp::Reverse;

/// Scores (query rows times keys) times dimensions below which waking other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 20;

/// Writes, reads and copies the blocks of caches of one shape.
///
/// The caches themselves belong to the caller and are passed to each call. Results do not depend on the number of
/// threads, nor on the other rows of a batch.
pub struct PagedAttention {
    layout: Layout,
    isa: Isa,
    workers: Workers,
}

/// A stretch of work for one thread.
enum Task<'p, 'a, E> {
    Whole(&'p mut Whole<'a, E>),
    Part(&'p mut Part<'a, E>),
}

impl<'a, E: Element> Task<'_, 'a, E> {
    fn tile(&self) -> &Tile<'a, E> {
        match self {
            Task::Whole(whole) => &whole.tile,
            Task::Part(part) => &part.tile,
        }
    }
}

impl PagedAttention {
    /// For caches of this shape, on `num_threads` threads, with the fastest instructions the processor has.
    ///
    /// # Errors
    /// As [`Layout::new`]; [`AttentionError::Setting`] for no threads, or more than the system gives.
    pub fn new(shape: CacheShape, num_threads: usize) -> Result<PagedAttention, AttentionError> {
        let layout = Layout::new(shape)?;
        if num_threads == 0 {
            return Err(AttentionError::setting("num_threads", 0, "1 or more"));
        }
        let workers = Workers::new(num_threads).map_err(|error| {
            AttentionError::setting("num_threads", num_threads, format!("fewer: {error}"))
        })?;
        Ok(PagedAttention {
            layout,
            isa: Isa::detect(),
            workers,
        })
    }

    /// The same with another instruction set.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> PagedAttention {
        self.isa = isa;
        self
    }

    /// Where things lie in the cache.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads a call may use, the calling one included.
    pub fn num_threads(&self) -> usize {
        self.workers.num_threads()
    }

    /// Stores the keys and values of one layer, `[tokens][num_kv_heads][head_size]`, in their slots.
    ///
    /// A slot is `block · block_size + offset`; tokens with slot −1 are ignored. Nothing outside the slots changes.
    /// When a slot occurs twice, the later token stays.
    ///
    /// # Errors
    /// [`AttentionError`] when a length does not match, or the layer or a slot is outside the cache.
    pub fn write<E: Element>(
        &self,
        cache: &mut [E],
        layer: usize,
        keys: &[E],
        values: &[E],
        slots: &[i64],
    ) -> Result<(), AttentionError> {
        let shape = *self.layout.shape();
        let token = shape.num_kv_heads * shape.head_size;
        self.check_cache(cache, layer)?;
        check_len("k", keys.len(), slots.len().saturating_mul(token))?;
        check_len("v", values.len(), slots.len().saturating_mul(token))?;
        let num_slots = (shape.num_blocks * shape.block_size) as i64;
        if let Some(slot) = slots.iter().find(|&&slot| !(-1..num_slots).contains(&slot)) {
            return Err(AttentionError::array(
                "slot_mapping",
                slot,
                format!("-1 to {}", num_slots - 1),
            ));
        }
        let heads = keys.chunks_exact(token).zip(values.chunks_exact(token));
        for (&slot, (keys, values)) in slots.iter().zip(heads).filter(|(slot, _)| **slot >= 0) {
            let (block, offset) = (
                slot as usize / shape.block_size,
                slot as usize % shape.block_size,
            );
            self.layout.store(
                cache,
                Slot {
                    block,
                    layer,
                    offset,
                },
                keys,
                values,
            );
        }
        Ok(())
    }

    /// Attention of `queries`, `[num_tokens][num_heads][head_size]`, to one layer of the cache, into `out`.
    ///
    /// A row's last query token sits at its last key, the others before it; each sees the keys up to its own
    /// position, of those the last `sliding_window` only. Tokens past the last row come out as zeros. What lies in
    /// slots that a token does not see, NaN included, does not reach its output.
    ///
    /// # Errors
    /// [`AttentionError`] when a length does not match, the layer or a block id is outside the cache, a row
    /// has fewer keys than query tokens or more than its table has blocks for, or a term is out of range.
    pub fn attend<E: Element>(
        &self,
        cache: &[E],
        layer: usize,
        queries: &[E],
        batch: &Batch<'_>,
        terms: &ScoreTerms<'_>,
        out: &mut [E],
    ) -> Result<(), AttentionError> {
        let token = batch
            .num_heads
            .saturating_mul(self.layout.shape().head_size);
        self.check_cache(cache, layer)?;
        check_len("q", queries.len(), batch.num_tokens.saturating_mul(token))?;
        check_len("out", out.len(), batch.num_tokens.saturating_mul(token))?;
        let sinks = terms.sinks;
        let terms = terms.check(batch.num_heads)?;
        let rows = batch.check(&self.layout, &terms)?;

        let num_real = rows.last().map_or(0, |row| row.tokens.end);
        let (out, padding) = out.split_at_mut(num_real * token);
        padding.fill(E::narrow(0.0));
        let layout = &self.layout;
        let call = Call {
            layout,
            cache,
            layer,
            queries,
            num_heads: batch.num_heads,
            terms,
            sinks,
        };
        let mut plan = call.plan(&rows, out);

        let whole = plan.whole.iter_mut().map(Task::Whole);
        let parts = plan
            .split
            .iter_mut()
            .flat_map(|split| &mut split.parts)
            .map(Task::Part);
        let mut tasks: Vec<_> = whole.chain(parts).collect();
        // The longest first, so that no thread starts one when the others are done.
        tasks.sort_by_key(|task| Reverse(task.tile().num_scores()));
        self.run(tasks);
        for Split { parts, outputs } in &mut plan.split {
            let (first, others) = parts.split_first_mut().expect("a split tile has parts");
            for other in others {
                first.state.merge(&other.state);
            }
            outputs.write(&first.state);
        }
        Ok(())
    }

    fn run<E: Element>(&self, tasks: Vec<Task<'_, '_, E>>) {
        let num_scores: usize = tasks.iter().map(|task| task.tile().num_scores()).sum();
        let share = num_scores.saturating_mul(self.layout.shape().head_size) >= WORTH_SHARING;
        self.workers.run(
            tasks,
            share,
            |(scratch, state): &mut (Scratch, State), task| match task {
                Task::Whole(whole) => {
                    self.isa.accumulate(&whole.tile, scratch, state);
                    whole.outputs.write(state);
                }
                Task::Part(part) => self.isa.accumulate(&part.tile, scratch, &mut part.state),
            },
        );
    }

    /// Copies whole blocks, all layers, in the order given; each pair is (from, to).
    ///
    /// # Errors
    /// [`AttentionError::Array`] when a block is outside the cache.
    pub fn copy_blocks<E: Element>(
        &self,
        cache: &mut [E],
        copies: &[[i32; 2]],
    ) -> Result<(), AttentionError> {
        self.check_cache(cache, 0)?;
        let num_blocks = self.layout.shape().num_blocks;
        if let Some(id) = copies
            .iter()
            .flatten()
            .find(|&&id| id < 0 || id as usize >= num_blocks)
        {
            return Err(AttentionError::array(
                "copies",
                id,
                format!("0 to {}", num_blocks - 1),
            ));
        }
        let block = self.layout.block_elements();
        for &[from, to] in copies {
            cache.copy_within(
                from as usize * block..(from as usize + 1) * block,
                to as usize * block,
            );
        }
        Ok(())
    }

    fn check_cache<E: Element>(&self, cache: &[E], layer: usize) -> Result<(), AttentionError> {
        check_len("cache", cache.len(), self.layout.num_elements())?;
        let num_layers = self.layout.shape().num_layers;
        if layer >= num_layers {
            return Err(AttentionError::setting(
                "layer",
                layer,
                format!("0 to {}", num_layers - 1),
            ));
        }
        Ok(())
    }
}
