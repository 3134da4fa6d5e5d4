//! Giving blocks back to the pool, and which must wait.

use std::sync::Arc;

use super::steps::Steps;
use crate::step::BlockCopy;
use crate::{BlockId, BlockPool, PoolError};

/// Releases blocks, except that a block from which an uncommitted step copies keeps its last
/// reference until that step is over.
#[derive(Debug)]
pub(crate) struct Returns {
    pool: Arc<BlockPool>,
    /// By block: uncommitted copies that read it.
    readers: Vec<u32>,
    num_copies: usize,
    scratch: Vec<BlockId>,
}

impl Returns {
    pub(crate) fn new(pool: Arc<BlockPool>) -> Self {
        let readers = vec![0; pool.num_blocks()];
        Self {
            pool,
            readers,
            num_copies: 0,
            scratch: Vec::new(),
        }
    }

    /// A copy was scheduled.
    pub(crate) fn add_reader(&mut self, copy: &BlockCopy) {
        self.readers[copy.source as usize] += 1;
        self.num_copies += 1;
    }

    /// A copy has run, or will not run.
    pub(crate) fn drop_reader(&mut self, copy: &BlockCopy) {
        self.readers[copy.source as usize] -= 1;
        self.num_copies -= 1;
    }

    pub(crate) fn readers(&self, block: BlockId) -> u32 {
        self.readers[block as usize]
    }

    /// Gives back one reference on each of `ids`, which are distinct, in this order.
    pub(crate) fn release(&mut self, ids: &[BlockId], steps: &mut Steps) -> Result<(), PoolError> {
        if self.num_copies == 0 {
            return self.pool.release_distinct(ids);
        }
        self.scratch.clear();
        for &id in ids {
            let last = self.pool.ref_cnt(id) == 1;
            if last
                && self.readers(id) > 0
                && let Some(step) = steps.newest_copying(id)
            {
                step.frees.push(&[id]);
            } else {
                self.scratch.push(id);
            }
        }
        self.pool.release_distinct(&self.scratch)
    }
}
