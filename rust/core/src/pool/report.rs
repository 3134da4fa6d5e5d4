//! Questions to the pool that change nothing.

use super::BlockPool;
use crate::BlockId;
use crate::block_state::BlockState;
use crate::stats::{BlockUse, BlockView, PoolStats};
use crate::sync::Ordering;

impl BlockPool {
    /// Blocks that an allocation could take now, those that hold a reusable prefix included.
    pub fn num_free(&self) -> usize {
        self.availability.read().free as usize
    }

    /// Blocks that can be handed out at all.
    pub fn num_usable(&self) -> usize {
        (self.config.num_blocks - self.config.first_usable()) as usize
    }

    /// Blocks of the pool, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.config.num_blocks as usize
    }

    /// How many sequences hold the block; 0 for ids that are not the pool's.
    pub fn ref_cnt(&self, id: BlockId) -> u32 {
        self.states
            .get(id as usize)
            .map_or(0, |state| state.load(Ordering::Relaxed).refs())
    }

    /// Whether a holder may write to the block: nobody else holds it and nobody can find it. Once
    /// true it stays true until the holder itself shares or publishes the block (INV-10).
    pub fn is_writable(&self, id: BlockId) -> bool {
        // Acquire: the reads of holders that have left come before our writes.
        self.states.get(id as usize).is_some_and(|state| {
            let state = state.load(Ordering::Acquire);
            state.refs() == 1 && state.is_plain()
        })
    }

    /// Counts of what the pool holds and of what it did so far.
    pub fn stats(&self) -> PoolStats {
        let available = self.availability.read();
        let (usable, free) = (self.num_usable(), available.free as usize);
        PoolStats {
            total: self.num_blocks(),
            usable,
            free,
            cached_free: available.cached as usize,
            in_use: usable - free,
            hashed: self.counters.hashed(),
            published: self.counters.published.get(),
            duplicates: self.counters.duplicates.get(),
            collisions: self.counters.collisions.get(),
            orphans: self.counters.orphans.get(),
            evictions: self.counters.evictions.get(),
            retractions: self.counters.retractions.get(),
            spills: self.counters.spills.get(),
            spilled_hashes: self.counters.spilled_hashes.get(),
            table_overflows: self.counters.table_overflows.get(),
            short_passes: self.counters.short_passes.get(),
            moves: self.queue.moves(),
            role_swaps: self.queue.role_swaps(),
            lost_events: self.events.as_ref().map_or(0, |log| log.num_lost()),
        }
    }

    /// Replaces the content of `out` by one view per block, in order of id. Stops nobody: each
    /// view is right by itself.
    pub fn snapshot(&self, out: &mut Vec<BlockView>) {
        out.clear();
        out.extend((0..).zip(&self.states).map(|(id, state)| {
            let state = state.load(Ordering::Relaxed);
            BlockView {
                ref_cnt: state.refs(),
                state: self.use_of(id, state),
            }
        }));
    }

    /// The free queue, front to back. Only meaningful while no other thread uses the pool.
    pub fn free_order(&self) -> Vec<BlockId> {
        let mut seen = vec![false; self.num_blocks()];
        let queued = self.queue.front_to_back().into_iter().flat_map(|ring| {
            let live = |id: BlockId| self.state(id).load(Ordering::Acquire);
            ring.entries()
                .flatten()
                .filter(move |t| t.is_live(live(t.id())))
                .map(|t| t.id())
        });
        // A late mover can leave two entries for a block; the first one counts.
        self.stack
            .top_down()
            .chain(queued)
            .filter(|id| !std::mem::replace(&mut seen[*id as usize], true))
            .collect()
    }

    /// Memory that the pool takes beside the blocks themselves.
    pub fn metadata_bytes(&self) -> usize {
        let stamps = self
            .stamps
            .as_ref()
            .map_or(0, |stamps| size_of_val(&*stamps.of));
        let contents = self.contents.as_ref();
        let contents = contents.map_or(0, |contents| contents.metadata_bytes());
        let events = self.events.as_ref().map_or(0, |log| log.metadata_bytes());
        size_of_val(&*self.states)
            + stamps
            + contents
            + events
            + self.keys.metadata_bytes()
            + self.index.metadata_bytes()
            + self.stack.metadata_bytes()
            + self.queue.metadata_bytes()
            + self.distinct.metadata_bytes()
    }

    fn use_of(&self, id: BlockId, state: BlockState) -> BlockUse {
        match (state.is_free(), state.is_hashed()) {
            _ if id < self.config.first_usable() => BlockUse::Null,
            (true, false) => BlockUse::Free,
            (true, true) => BlockUse::Cached,
            (false, false) => BlockUse::InUse,
            (false, true) => BlockUse::Published,
        }
    }
}
