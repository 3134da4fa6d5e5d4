//! Handing out blocks.

use super::BlockPool;
use crate::BlockId;
use crate::availability::Available;
use crate::block_state::Ticket;
use crate::error::OutOfBlocks;
use crate::sync::{Ordering, spin_loop};

impl BlockPool {
    /// Fills `out` with blocks that only the caller holds, in the order of the free queue, or takes
    /// none. Blocks that still held a reusable prefix lose it.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if fewer blocks are free than asked for; nothing was taken.
    pub fn allocate(&self, out: &mut [BlockId]) -> Result<(), OutOfBlocks> {
        self.reserve(out.len())?;
        self.collect(out);
        Ok(())
    }

    /// Reserves the right to take this many blocks (INV-6): the one step at which an allocation
    /// succeeds or fails.
    pub(super) fn reserve(&self, count: usize) -> Result<(), OutOfBlocks> {
        self.availability
            .reserve(count)
            .map_err(|found| self.out_of_blocks(count, found))
    }

    /// Takes as many blocks as `out` holds, which must have been reserved. Ends because at least as
    /// many free blocks are visible as units are reserved (INV-4): a pass that comes back short
    /// means that another thread took or moved a block meanwhile.
    pub(super) fn collect(&self, out: &mut [BlockId]) {
        let mut evicted = 0;
        let mut taken = 0;
        while taken < out.len() {
            taken += self.pop_clean(&mut out[taken..]);
            if taken < out.len() {
                let take = |ticket| self.take(ticket, &mut evicted);
                taken += self.queue.collect(&self.states, &mut out[taken..], take);
            }
            if taken < out.len() {
                self.counters.short_passes.add(1);
                spin_loop();
            }
        }
        if evicted != 0 {
            self.counters.evictions.add(u64::from(evicted));
            self.availability.settle(0, evicted);
        }
    }

    fn pop_clean(&self, out: &mut [BlockId]) -> usize {
        let popped = self.stack.pop(out);
        for id in &out[..popped] {
            let state = self.state(*id);
            // Acquire on the state, not only on the stack's head: the head synchronises with
            // whoever pushed the block, the state with every holder before it.
            let free = state.load(Ordering::Acquire);
            // A plain store, because nobody finds a block without a hash. Relaxed, because the
            // caller publishes nothing by it.
            state.store(free.taken(), Ordering::Relaxed);
        }
        popped
    }

    /// Makes the caller the sole holder of a queued block, unless its ticket is dead. The key is
    /// read first and confirmed by the swap, so no later tenant's index entry can be removed.
    fn take(&self, ticket: Ticket, evicted: &mut u32) -> bool {
        let id = ticket.id();
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        while ticket.is_live(found) {
            let key = found.is_hashed().then(|| self.keys.read(id));
            // Acquire: all holders before have released the block by a Release swap.
            match state.swap(found, found.taken(), Ordering::Acquire, Ordering::Acquire) {
                Ok(()) => {
                    if let Some(key) = key {
                        self.index.remove(self.index.home(&key), id);
                        *evicted += 1;
                        self.tell_removed(id, found);
                    }
                    return true;
                }
                Err(now) => found = now,
            }
        }
        false
    }

    #[cold]
    fn out_of_blocks(&self, asked: usize, found: Available) -> OutOfBlocks {
        let free = found.free as usize;
        OutOfBlocks {
            asked,
            free,
            cached: (found.cached as usize).min(free),
            pinned: self.num_usable() - free,
            total: self.num_blocks(),
        }
    }
}
