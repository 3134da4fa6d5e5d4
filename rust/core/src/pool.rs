//! The block pool: who holds which block, which blocks are free and in which order they are
//! reused, and which block holds a given prefix.

mod admit;
mod allocate;
mod lookup;
mod publish;
mod release;
mod report;

pub(crate) use lookup::Found;
pub use lookup::PrefixPeek;
pub use publish::Published;

use crate::BlockId;
use crate::availability::Availability;
use crate::block_key::KeyStore;
use crate::block_state::{BlockCell, BlockState};
use crate::clean_stack::CleanStack;
use crate::config::{DuplicatePolicy, FreeOrder, PoolConfig};
use crate::distinct_check::DistinctCheck;
use crate::error::PoolError;
use crate::events::EventLog;
use crate::eviction_queue::EvictionQueue;
use crate::prefix_contents::PrefixContents;
use crate::prefix_index::PrefixIndex;
use crate::stats::Counters;
use crate::sync::AtomicU64;

/// A fixed number of KV-cache blocks, shared by any number of threads without a lock.
///
/// No operation waits for another thread, allocates memory or changes anything when it fails.
///
/// Conservation (INV-2): blocks with `ref_cnt` > 0 + [`num_free`](Self::num_free) + blocks reserved
/// by calls in progress = [`num_usable`](Self::num_usable); [`check_invariants`] verifies it at
/// quiescence, together with the other numbered invariants of the [design page](crate::design).
///
/// [`check_invariants`]: Self::check_invariants
#[derive(Debug)]
pub struct BlockPool {
    pub(crate) config: PoolConfig,
    /// One packed word per block, the only authority over it. Everything below is an index over
    /// these words that may be late, and is validated against them.
    pub(crate) states: Box<[BlockCell]>,
    pub(crate) keys: KeyStore,
    /// Only if hits compare tokens too.
    pub(crate) contents: Option<Box<PrefixContents>>,
    /// `KeepAll` only: when each block was published, to return the oldest of several copies.
    /// Relaxed: written before the state becomes `hashed` and read after it was seen to be.
    stamps: Option<Stamps>,
    pub(crate) index: PrefixIndex,
    /// Free blocks without a hash: the front of the free queue.
    pub(crate) stack: CleanStack,
    /// Free blocks with a hash: the rest of it. With `AppendAll`, all that were ever released.
    pub(crate) queue: EvictionQueue,
    pub(crate) availability: Availability,
    distinct: DistinctCheck,
    /// Only if somebody wants to be told which hashes come and go.
    pub(crate) events: Option<Box<EventLog>>,
    pub(crate) counters: Counters,
}

#[derive(Debug)]
struct Stamps {
    next: AtomicU64,
    of: Box<[AtomicU64]>,
}

impl BlockPool {
    /// Builds a pool in which every usable block is free, in ascending order.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] names the field, its value and what is allowed.
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        config.validate()?;
        let blocks = config.num_blocks;
        let first = config.first_usable();
        Ok(Self {
            config,
            states: (0..blocks)
                .map(|_| BlockCell::new(BlockState::INITIAL))
                .collect(),
            keys: KeyStore::new(blocks, config.key_width),
            contents: PrefixContents::new(blocks, config.verify_tokens),
            stamps: (config.duplicate_policy == DuplicatePolicy::KeepAll).then(|| Stamps {
                next: AtomicU64::new(0),
                of: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            }),
            index: PrefixIndex::new(config.index_slots(), config.index_ways()),
            // Also with `AppendAll`: nothing was released yet, so the stack is just the front.
            stack: CleanStack::ascending(first, blocks),
            queue: EvictionQueue::new(config.queue_sizes()),
            availability: Availability::new(blocks - first),
            distinct: DistinctCheck::new(blocks),
            events: EventLog::new(&config),
            counters: Counters::default(),
        })
    }

    /// How the pool was built.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    pub(crate) fn state(&self, id: BlockId) -> &BlockCell {
        &self.states[id as usize]
    }

    pub(crate) fn verifies(&self) -> bool {
        self.contents.is_some()
    }

    /// Whether a block with this state goes to the eviction queue when its last holder leaves.
    fn queues(&self, state: BlockState) -> bool {
        state.is_hashed() || self.config.free_order == FreeOrder::AppendAll
    }

    /// Refuses ids that nobody can hold.
    fn check_id(&self, id: BlockId) -> Result<(), PoolError> {
        if id >= self.config.num_blocks {
            return Err(PoolError::UnknownBlock {
                id,
                total: self.num_blocks(),
            });
        }
        if id < self.config.first_usable() {
            return Err(PoolError::NullBlock);
        }
        Ok(())
    }
}
