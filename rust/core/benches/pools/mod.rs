//! The pool and the plain lists it is measured against, behind one interface.

mod list_pool;
mod lock;

use std::sync::Mutex;

use looseleaf::{BlockId, BlockKey, BlockPool, PoolConfig};

pub use list_pool::{ListPool, Lists};
pub use lock::{Lock, SpinLock};

/// The lists behind a lock that waits awake.
pub type SpinPool = ListPool<SpinLock<Lists>>;
/// The lists behind a lock that lets the kernel wake it.
pub type MutexPool = ListPool<Mutex<Lists>>;

/// What a server does to a pool. Calls that a server would not make may panic.
pub trait Pool: Send + Sync {
    /// A pool in the product's default order whose block 0 is never handed out.
    fn with_blocks(num_blocks: u32) -> Self;

    /// Fills `out`, or takes nothing and returns `false`.
    fn allocate(&self, out: &mut [BlockId]) -> bool;

    /// Gives back one reference to each block; the ids are distinct.
    fn release(&self, ids: &[BlockId]);

    /// Takes a reference on the block of each leading key that is cached; returns how many.
    fn match_prefix(&self, keys: &[BlockKey], out: &mut [BlockId]) -> usize;

    /// Takes one more reference on each block.
    fn share(&self, ids: &[BlockId]);

    /// Makes held blocks findable, unless another block holds the key; returns how many are.
    fn publish(&self, ids: &[BlockId], keys: &[BlockKey]) -> usize;
}

impl Pool for BlockPool {
    fn with_blocks(num_blocks: u32) -> Self {
        Self::new(PoolConfig::new(num_blocks)).expect("the size is valid")
    }

    fn allocate(&self, out: &mut [BlockId]) -> bool {
        Self::allocate(self, out).is_ok()
    }

    /// Without the search for repeated ids, since the lists do not search either.
    fn release(&self, ids: &[BlockId]) {
        self.release_distinct(ids).expect("the blocks are held");
    }

    fn match_prefix(&self, keys: &[BlockKey], out: &mut [BlockId]) -> usize {
        Self::match_prefix(self, keys, out)
    }

    fn share(&self, ids: &[BlockId]) {
        Self::share(self, ids).expect("the blocks are held");
    }

    fn publish(&self, ids: &[BlockId], keys: &[BlockKey]) -> usize {
        self.publish_prefix(ids, keys, 0)
            .expect("the blocks are held and have no hash")
    }
}
