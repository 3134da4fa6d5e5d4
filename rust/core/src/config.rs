//! How a pool is built.

use std::ops::RangeInclusive;

use crate::block_key::KeyWidth;
use crate::block_state::MAX_BLOCKS;
use crate::error::PoolError;
use crate::eviction_queue::QueueSizes;
use crate::eviction_ring::MAX_SLOTS;
use crate::prefix_index::MAX_WAYS;

const MAX_EVENTS: u32 = 1 << 24;
const MAX_BLOCK_TOKENS: u32 = 1 << 16;

/// Where released blocks queue. Seen from one thread, both orders are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FreeOrder {
    /// Blocks without a hash go to the front, in the order of the call, and are reused first;
    /// hashed ones go to the back. This is the order of vLLM 0.32.
    #[default]
    UnhashedFirst,
    /// Every block goes to the back: first in, first out.
    AppendAll,
}

/// What happens to a block whose key is cached already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DuplicatePolicy {
    /// It stays without a hash, so that it is reused first and one copy per key is cached.
    /// Publishes of one key that overlap in time can still leave a copy each.
    #[default]
    FirstWins,
    /// It is cached too, and hits return the copy that was published first. This is vLLM's
    /// behaviour; it costs 8 bytes a block, and more than 16 copies of one key find no room.
    KeepAll,
}

/// Sizes that are derived from the number of blocks unless they are given. Tests make them tiny to
/// reach the rare branches; servers leave them alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tuning {
    /// Slots of the ring that takes released blocks. Default 2 per block, at least 256.
    pub young_slots: Option<u32>,
    /// Slots of each of the two rings behind it. Default 1.75 per block, at least 256. With fewer
    /// than one per block the rings can overflow, and blocks lose their hashes for it.
    pub aged_slots: Option<u32>,
    /// Entries of the young ring above which pushes move entries onwards; fewer than it has slots.
    /// Default half of them.
    pub young_threshold: Option<u32>,
    /// Entries moved onwards per released block. Default 4: a drain of an aged ring costs
    /// 1.75 moves for each 0.75 entries that it makes room for, an entry one more to get there,
    /// so 3.4 keep up with any load.
    pub moves_per_push: Option<u32>,
    /// Dead entries that small allocations let gather at a ring's front. Default 16.
    pub lazy_close: Option<u32>,
    /// Slots of the prefix index. Default 2 per block.
    pub index_slots: Option<u32>,
    /// Slots of a bucket of the index, at most 8. Default 8.
    pub index_ways: Option<u32>,
}

/// How a pool is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Blocks of the pool, the null block included; at most 2^24 − 1.
    pub num_blocks: u32,
    /// Whether block 0 is kept back as the target of padding. If not, ids count from 0.
    pub reserve_null_block: bool,
    /// Where released blocks queue.
    pub free_order: FreeOrder,
    /// What happens to a block whose key is cached already.
    pub duplicate_policy: DuplicatePolicy,
    /// Bits kept of each key.
    pub key_width: KeyWidth,
    /// Records that wait for an [`EventReader`](crate::EventReader), rounded up to a power of two;
    /// 0 for no events. As many as there are blocks are plenty for a reader that drains each step.
    pub event_capacity: u32,
    /// Tokens of a block that its event carries, which is the block size; 0 to leave tokens out.
    pub event_tokens: u32,
    /// Tokens of a block, if a hit is to compare the tokens of the whole prefix and not only the
    /// hash, so that two prompts whose hashes collide never share a block; 0 to trust the hash.
    /// Costs 4 bytes a token and 16 a block.
    pub verify_tokens: u32,
    /// Sizes for tests.
    pub tuning: Tuning,
}

impl PoolConfig {
    /// The defaults for this many blocks.
    pub fn new(num_blocks: u32) -> Self {
        Self {
            num_blocks,
            reserve_null_block: true,
            free_order: FreeOrder::default(),
            duplicate_policy: DuplicatePolicy::default(),
            key_width: KeyWidth::default(),
            event_capacity: 0,
            event_tokens: 0,
            verify_tokens: 0,
            tuning: Tuning::default(),
        }
    }

    /// First id that can be handed out.
    pub(crate) fn first_usable(&self) -> u32 {
        u32::from(self.reserve_null_block)
    }

    pub(crate) fn validate(&self) -> Result<(), PoolError> {
        let sizes = self.queue_sizes();
        let highest_threshold = sizes.young_slots.saturating_sub(1);
        within(
            "num_blocks",
            self.num_blocks,
            self.first_usable() + 1..=MAX_BLOCKS,
        )?;
        within("event_capacity", self.event_capacity, 0..=MAX_EVENTS)?;
        within("event_tokens", self.event_tokens, 0..=MAX_BLOCK_TOKENS)?;
        within("verify_tokens", self.verify_tokens, 0..=MAX_BLOCK_TOKENS)?;
        if self.event_tokens != 0 {
            let least = self.verify_tokens..=MAX_BLOCK_TOKENS;
            within(
                "event_tokens of a pool that verifies tokens",
                self.event_tokens,
                least,
            )?;
        }
        within("tuning.young_slots", sizes.young_slots, 1..=MAX_SLOTS)?;
        within("tuning.aged_slots", sizes.aged_slots, 1..=MAX_SLOTS)?;
        within(
            "tuning.young_threshold",
            sizes.young_threshold,
            0..=highest_threshold,
        )?;
        within("tuning.moves_per_push", sizes.moves_per_push, 1..=u32::MAX)?;
        within("tuning.index_slots", self.index_slots(), 1..=u32::MAX)?;
        within("tuning.index_ways", self.index_ways(), 1..=MAX_WAYS)
    }

    pub(crate) fn queue_sizes(&self) -> QueueSizes {
        const FEWEST_SLOTS: u32 = 256;
        let (blocks, tuning) = (self.num_blocks, &self.tuning);
        let at_least = |slots: u32| slots.max(FEWEST_SLOTS);
        let young_slots = tuning
            .young_slots
            .unwrap_or_else(|| at_least(blocks.saturating_mul(2)));
        QueueSizes {
            young_slots,
            aged_slots: tuning
                .aged_slots
                .unwrap_or_else(|| at_least(blocks / 4 * 7)),
            young_threshold: tuning.young_threshold.unwrap_or(young_slots / 2),
            moves_per_push: tuning.moves_per_push.unwrap_or(4),
            lazy_close: tuning.lazy_close.unwrap_or(16),
        }
    }

    pub(crate) fn index_slots(&self) -> u32 {
        self.tuning
            .index_slots
            .unwrap_or(self.num_blocks.saturating_mul(2))
    }

    pub(crate) fn index_ways(&self) -> u32 {
        self.tuning.index_ways.unwrap_or(MAX_WAYS)
    }
}

fn within(field: &'static str, value: u32, allowed: RangeInclusive<u32>) -> Result<(), PoolError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (low, high) = allowed.into_inner();
    Err(PoolError::InvalidConfig {
        field,
        value: u64::from(value),
        allowed: format!("{low} to {high}"),
    })
}
