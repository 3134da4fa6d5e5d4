//! What the pool says about itself while it works.

use crate::sync::Counter;

/// Counts of a pool. Each is right; taken together while other threads work they are a sketch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Blocks, the null block included.
    pub total: usize,
    /// Blocks that can be handed out at all.
    pub usable: usize,
    /// Blocks that an allocation could take now, cached ones included.
    pub free: usize,
    /// Free blocks that still hold a reusable prefix.
    pub cached_free: usize,
    /// Blocks held by sequences or reserved by calls in progress.
    pub in_use: usize,
    /// Blocks with a hash, held or free.
    pub hashed: usize,
    /// Blocks that were given a hash so far.
    pub published: u64,
    /// Publishes that found the key cached already and left the block plain.
    pub duplicates: u64,
    /// Comparisons in which the hashes were equal and the tokens were not; each was a miss. Only
    /// pools with `verify_tokens` see them.
    pub collisions: u64,
    /// Comparisons in which hashes and tokens were equal, but the prefixes before the blocks were
    /// not the same: that of the cached block was forgotten and computed anew, or is another one
    /// whose hash collides. Each was a miss.
    pub orphans: u64,
    /// Hashes forgotten because an allocation took the block.
    pub evictions: u64,
    /// Hashes forgotten on request.
    pub retractions: u64,
    /// Released blocks that found the eviction rings full and went to the clean stack instead.
    pub spills: u64,
    /// Hashes forgotten by a spill.
    pub spilled_hashes: u64,
    /// Publishes that found both buckets of the prefix index full.
    pub table_overflows: u64,
    /// Passes over the free queue after which an allocation had to look again, because another
    /// thread had taken or moved a block meanwhile.
    pub short_passes: u64,
    /// Entries moved from one eviction ring to the next.
    pub moves: u64,
    /// How often the two older eviction rings changed roles.
    pub role_swaps: u64,
    /// Event records that found the ring full. The next drain makes up for them.
    pub lost_events: u64,
}

/// The counters behind [`PoolStats`] that belong to no one structure.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) collisions: Counter,
    pub(crate) orphans: Counter,
    pub(crate) evictions: Counter,
    pub(crate) retractions: Counter,
    pub(crate) spills: Counter,
    pub(crate) spilled_hashes: Counter,
    pub(crate) table_overflows: Counter,
    pub(crate) short_passes: Counter,
}

impl Counters {
    /// Blocks that carry a hash: each was given one once and has not lost it since.
    pub(crate) fn hashed(&self) -> usize {
        let lost = self.evictions.get() + self.retractions.get() + self.spilled_hashes.get();
        self.published.get().saturating_sub(lost) as usize
    }
}

/// What a block is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// The null block.
    Null,
    /// Free, with nothing in it.
    Free,
    /// Free, and still hit-able for the prefix it holds.
    Cached,
    /// Held by sequences; its content is theirs alone.
    InUse,
    /// Held by sequences, and hit-able for others.
    Published,
}

/// One block in a [snapshot](crate::BlockPool::snapshot).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// Sequences that hold the block.
    pub ref_cnt: u32,
    /// What the block is used for.
    pub state: BlockUse,
}
