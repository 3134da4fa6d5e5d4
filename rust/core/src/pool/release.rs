//! Giving references back, and taking more of them.

use super::BlockPool;
use crate::BlockId;
use crate::block_state::{BlockState, MAX_REFS, Ticket};
use crate::clean_stack::Run;
use crate::error::PoolError;
use crate::eviction_queue::BATCH;
use crate::sync::Ordering;

/// What became of a block when one reference went.
enum Dropped {
    /// Others still hold it.
    Held,
    /// Nobody holds it; it belongs on the clean stack.
    Clean,
    /// Nobody holds it; it belongs in the eviction queue.
    Queued { ticket: Ticket, hashed: bool },
}

impl BlockPool {
    /// Gives back one reference to each block. Blocks that nobody holds any more become free in
    /// the order given: pass a sequence's blocks tail first, so that the end of a prefix is evicted
    /// before its beginning.
    ///
    /// # Errors
    /// Unknown and null ids, blocks that nobody holds and ids named twice are refused before
    /// anything is changed; see [`PoolError::DoubleRelease`] for calls that race.
    pub fn release(&self, ids: &[BlockId]) -> Result<(), PoolError> {
        self.check_each(ids, releasable)?;
        self.check_distinct(ids)?;
        self.drop_references(ids)
    }

    /// [`release`](Self::release) for lists whose ids are distinct by construction, such as the
    /// block table of one sequence: saves looking for duplicates.
    ///
    /// # Errors
    /// As for `release`. An id that is named twice after all loses two references, if it has them.
    pub fn release_distinct(&self, ids: &[BlockId]) -> Result<(), PoolError> {
        self.check_each(ids, releasable)?;
        self.drop_references(ids)
    }

    /// Takes one more reference on each block. The caller must hold each already.
    ///
    /// # Errors
    /// Unknown and null ids, free blocks, ids named twice and blocks with as many references as can
    /// be counted are refused; nothing has changed then.
    pub fn share(&self, ids: &[BlockId]) -> Result<(), PoolError> {
        self.check_each(ids, shareable)?;
        self.check_distinct(ids)?;
        for (done, id) in ids.iter().enumerate() {
            if let Err(error) = self.add_reference(*id) {
                return self.drop_references(&ids[..done]).and(Err(error));
            }
        }
        Ok(())
    }

    fn check_each(
        &self,
        ids: &[BlockId],
        check: impl Fn(BlockId, BlockState) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        ids.iter().try_for_each(|id| {
            self.check_id(*id)?;
            check(*id, self.state(*id).load(Ordering::Relaxed))
        })
    }

    pub(super) fn check_distinct(&self, ids: &[BlockId]) -> Result<(), PoolError> {
        match self.distinct.find_duplicate(ids) {
            None => Ok(()),
            Some(id) => Err(PoolError::DuplicateId { id }),
        }
    }

    fn add_reference(&self, id: BlockId) -> Result<(), PoolError> {
        let state = self.state(id);
        let mut found = state.load(Ordering::Relaxed);
        loop {
            shareable(id, found)?;
            // Relaxed: the caller's own reference already gives access, as for `Arc::clone`. A
            // swap, not an addition, so that a free block is never counted up even for a moment.
            match state.swap(found, found.shared(), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(()) => return Ok(()),
                Err(now) => found = now,
            }
        }
    }

    /// Releases every id it can and reports the first that it could not.
    fn drop_references(&self, ids: &[BlockId]) -> Result<(), PoolError> {
        let mut clean = Run::default();
        let (mut freed, mut cached) = (0, 0);
        let mut outcome = Ok(());
        for chunk in ids.chunks(BATCH) {
            let mut tickets = [Ticket::default(); BATCH];
            let mut queued = 0;
            for id in chunk {
                match self.drop_reference(*id) {
                    Ok(Dropped::Held) => {}
                    Ok(Dropped::Clean) => {
                        self.stack.append(&mut clean, *id);
                        freed += 1;
                    }
                    Ok(Dropped::Queued { ticket, hashed }) => {
                        tickets[queued] = ticket;
                        queued += 1;
                        freed += 1;
                        cached += u32::from(hashed);
                    }
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            if queued != 0 {
                self.queue.push(&self.states, &tickets[..queued], |ticket| {
                    cached -= u32::from(self.spill(ticket));
                });
            }
        }
        self.stack.push(clean);
        // Last: a unit may only be had once its block can be found (INV-4).
        self.availability.add(freed, cached);
        outcome
    }

    fn drop_reference(&self, id: BlockId) -> Result<Dropped, PoolError> {
        let state = self.state(id);
        let mut found = state.load(Ordering::Relaxed);
        loop {
            releasable(id, found)?;
            let last = found.refs() == 1;
            let to_ring = last && self.queues(found);
            // Release: what this holder did to the block comes before whatever its next owner
            // does. While the block is shared every change is a read-modify-write, so the next
            // owner's Acquire reaches every earlier holder through the release sequence (INV-14).
            match state.swap(
                found,
                found.released(to_ring),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(()) if !last => return Ok(Dropped::Held),
                Ok(()) if !to_ring => return Ok(Dropped::Clean),
                Ok(()) => {
                    let ticket = Ticket::new(id, found);
                    return Ok(Dropped::Queued {
                        ticket,
                        hashed: found.is_hashed(),
                    });
                }
                Err(now) => found = now,
            }
        }
    }

    /// The rings are full: forget the block's hash and put it on the stack. Costs a cached prefix
    /// and, with `AppendAll`, the block's place; never waits. Returns whether a hash was forgotten.
    #[cold]
    fn spill(&self, ticket: Ticket) -> bool {
        let id = ticket.id();
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        // Until the swap, a look-up may still touch the block; it is then not ours to queue.
        while ticket.is_live(found) {
            let key = found.is_hashed().then(|| self.keys.read(id));
            // Relaxed: as a read-modify-write it continues the release sequences of the holders
            // that left, which is all that the popper's Acquire needs.
            match state.swap(found, found.spilled(), Ordering::Relaxed, Ordering::Acquire) {
                Ok(()) => {
                    if let Some(key) = key {
                        self.index.remove(self.index.home(&key), id);
                        self.counters.spilled_hashes.add(1);
                        self.tell_removed(id, found);
                    }
                    self.counters.spills.add(1);
                    let mut run = Run::default();
                    self.stack.append(&mut run, id);
                    self.stack.push(run);
                    return key.is_some();
                }
                Err(now) => found = now,
            }
        }
        false
    }
}

fn releasable(id: BlockId, state: BlockState) -> Result<(), PoolError> {
    if state.is_free() {
        Err(PoolError::DoubleRelease { id })
    } else if state.is_publishing() && state.refs() == 1 {
        Err(PoolError::PublishInProgress { id })
    } else {
        Ok(())
    }
}

fn shareable(id: BlockId, state: BlockState) -> Result<(), PoolError> {
    if state.is_free() {
        Err(PoolError::FreeBlock { id })
    } else if state.refs() == MAX_REFS {
        Err(PoolError::RefCountOverflow { id, max: MAX_REFS })
    } else {
        Ok(())
    }
}
