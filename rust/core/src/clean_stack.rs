//! Free blocks without a hash: a last-in-first-out stack under one tagged word.
//!
//! Nothing can find such a block, so popping it needs no compare-and-swap of its state, and a batch
//! of any size is pushed or popped by one swap of the head.

use crate::BlockId;
use crate::block_state::NO_BLOCK;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering};

const ID_BITS: u32 = 24;
const ID_MASK: u64 = (1 << ID_BITS) - 1;

#[derive(Debug)]
pub(crate) struct CleanStack {
    /// Change count (40 bits) over the id of the top block. The count rises with every push and
    /// pop, so a popper that walked a list which changed meanwhile fails its swap.
    head: CachePadded<AtomicU64>,
    /// `next[id]`: the block below `id`. Meaningful only while `id` is on the stack or in a run
    /// that is about to be pushed; read by poppers that may be late, who then fail their swap.
    next: Box<[AtomicU32]>,
}

/// Blocks linked privately, in the order in which they will be popped.
#[derive(Clone, Copy, Default)]
pub(crate) struct Run(Option<(BlockId, BlockId)>);

impl CleanStack {
    /// Holds `first..num_blocks`, lowest id on top.
    pub(crate) fn ascending(first: BlockId, num_blocks: u32) -> Self {
        let next = (0..num_blocks)
            .map(|id| {
                AtomicU32::new(if id + 1 < num_blocks {
                    id + 1
                } else {
                    NO_BLOCK
                })
            })
            .collect();
        let top = if first < num_blocks { first } else { NO_BLOCK };
        Self {
            head: CachePadded(AtomicU64::new(u64::from(top))),
            next,
        }
    }

    /// Adds `id` at the end of `run`. The caller must be the one who freed `id`, and not have
    /// pushed it anywhere yet.
    pub(crate) fn append(&self, run: &mut Run, id: BlockId) {
        run.0 = match run.0 {
            None => Some((id, id)),
            Some((first, last)) => {
                // Relaxed: published with the run by the head swap in `push`.
                self.next[last as usize].store(id, Ordering::Relaxed);
                Some((first, id))
            }
        };
    }

    /// Puts a run on top, its first block uppermost.
    pub(crate) fn push(&self, run: Run) {
        let Some((first, last)) = run.0 else { return };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.next[last as usize].store((head & ID_MASK) as BlockId, Ordering::Relaxed);
            // Release: whoever pops (Acquire) sees the links. Pushes below this one are seen too,
            // because every change of the head is a read-modify-write and continues their
            // release sequences.
            match self.head.compare_exchange_weak(
                head,
                Self::replaced(head, first),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Pops up to `out.len()` blocks and returns how many.
    pub(crate) fn pop(&self, out: &mut [BlockId]) -> usize {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let mut below = (head & ID_MASK) as BlockId;
            let mut popped = 0;
            while below != NO_BLOCK && popped < out.len() {
                out[popped] = below;
                popped += 1;
                // Relaxed: if the swap below succeeds, the head did not move since the Acquire
                // load, so this is the link its pusher wrote; if not, the value is not used.
                below = self.next[below as usize].load(Ordering::Relaxed);
            }
            if popped == 0 {
                return 0;
            }
            // Acquire on failure: the links are walked again.
            match self.head.compare_exchange_weak(
                head,
                Self::replaced(head, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return popped,
                Err(found) => head = found,
            }
        }
    }

    /// The blocks from the top down. Only at quiescence; a broken list ends after as many blocks
    /// as the pool has, so that the caller can report it.
    pub(crate) fn top_down(&self) -> impl Iterator<Item = BlockId> + '_ {
        let top = (self.head.load(Ordering::Acquire) & ID_MASK) as BlockId;
        std::iter::successors((top != NO_BLOCK).then_some(top), |&id| {
            let below = self.next.get(id as usize)?.load(Ordering::Relaxed);
            (below != NO_BLOCK).then_some(below)
        })
        .take(self.next.len() + 1)
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.next)
    }

    fn replaced(head: u64, top: BlockId) -> u64 {
        ((head >> ID_BITS).wrapping_add(1) << ID_BITS) | u64::from(top)
    }
}
