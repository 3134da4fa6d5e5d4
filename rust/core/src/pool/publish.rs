//! Making a block's content findable, and forgetting it.

use super::{BlockPool, Stamps};
use crate::BlockId;
use crate::block_key::BlockKey;
use crate::block_state::BlockState;
use crate::config::DuplicatePolicy;
use crate::error::PoolError;
use crate::sync::Ordering;

/// What came of a publish. In all cases the caller still holds the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// The block can be hit from now on.
    Cached,
    /// Another block holds the key already; this one stays plain.
    Duplicate,
    /// The prefix index has no room for the key; the block stays plain.
    Full,
}

impl BlockPool {
    /// Makes a held block findable under `key`. Call it when the block's keys and values have been
    /// written, not before: a hit may follow at once.
    ///
    /// # Errors
    /// Unknown and null ids, free blocks, blocks that carry a hash already and keys of more bits
    /// than the pool keeps are refused; nothing has changed then.
    pub fn publish(&self, id: BlockId, key: &BlockKey) -> Result<Published, PoolError> {
        self.check_id(id)?;
        self.check_width(key)?;
        let state = self.state(id);
        let mut found = publishable(id, state.load(Ordering::Relaxed))?;
        let home = self.index.home(key);
        let first_wins = self.config.duplicate_policy == DuplicatePolicy::FirstWins;
        if first_wins && self.find_at(home, key).is_some() {
            self.counters.duplicates.add(1);
            return Ok(Published::Duplicate);
        }
        // Relaxed: excludes a second publisher (INV-9), nothing more. The new `seq` reaches
        // late look-ups through the key's words, see `KeyStore`.
        while let Err(now) = state.swap(
            found,
            found.publishing(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            found = publishable(id, now)?;
        }
        self.keys.write(id, key);
        if let Some(stamps) = &self.stamps {
            stamps.stamp(id);
        }
        // Enter first, then become `hashed`: whoever ends the hashed state finds its entry there.
        if !self.index.insert(home, id) {
            state.abandon_publish(Ordering::Relaxed);
            self.counters.table_overflows.add(1);
            return Ok(Published::Full);
        }
        // Counted before, so that no eviction is counted ahead of its publish.
        self.counters.published.add(1);
        // Release: a look-up that sees `hashed` (Acquire) sees the key, the stamp and the content.
        state.finish_publish(Ordering::Release);
        Ok(Published::Cached)
    }

    /// [`publish`](Self::publish)es the blocks of a prefix, each under its key, and returns how many
    /// of them can be hit now.
    ///
    /// # Errors
    /// As for `publish`, and before anything is changed; only a call that races for one of the blocks
    /// can make it fail half-way.
    ///
    /// # Panics
    /// If there are not as many keys as blocks.
    pub fn publish_prefix(&self, ids: &[BlockId], keys: &[BlockKey]) -> Result<usize, PoolError> {
        assert_eq!(ids.len(), keys.len(), "one key per block");
        for (id, key) in ids.iter().zip(keys) {
            self.check_id(*id)?;
            self.check_width(key)?;
            publishable(*id, self.state(*id).load(Ordering::Relaxed))?;
        }
        self.check_distinct(ids)?;
        let mut cached = 0;
        for (id, key) in ids.iter().zip(keys) {
            cached += usize::from(self.publish(*id, key)? == Published::Cached);
        }
        Ok(cached)
    }

    fn check_width(&self, key: &BlockKey) -> Result<(), PoolError> {
        if key.fits(self.keys.width()) {
            Ok(())
        } else {
            Err(PoolError::KeyTooWide {
                bits: self.keys.width().bits(),
            })
        }
    }

    /// Forgets a block's hash; its holders and its place in the free queue stay. Returns whether
    /// there was one. The caller need not hold the block.
    ///
    /// # Errors
    /// Unknown and null ids are refused.
    pub fn retract(&self, id: BlockId) -> Result<bool, PoolError> {
        self.check_id(id)?;
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        while found.is_hashed() {
            let key = self.keys.read(id);
            // The swap confirms the key and makes this call the one that removes the entry.
            // Relaxed: the block's content does not change hands.
            match state.swap(
                found,
                found.retracted(),
                Ordering::Relaxed,
                Ordering::Acquire,
            ) {
                Ok(()) => {
                    self.index.remove(self.index.home(&key), id);
                    self.counters.retractions.add(1);
                    self.availability.settle(0, u32::from(found.is_free()));
                    return Ok(true);
                }
                Err(now) => found = now,
            }
        }
        Ok(false)
    }

    /// Forgets every hash. The order of the free queue stays.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks are held; nothing has changed then.
    pub fn reset_prefix_cache(&self) -> Result<(), PoolError> {
        let blocks = self.num_usable() - self.num_free();
        if blocks != 0 {
            return Err(PoolError::InUse { blocks });
        }
        for id in self.config.first_usable()..self.config.num_blocks {
            self.retract(id)?;
        }
        Ok(())
    }

    /// The key under which the block can be hit, if it can.
    pub fn key_of(&self, id: BlockId) -> Option<BlockKey> {
        let state = self.states.get(id as usize)?;
        let mut found = state.load(Ordering::Acquire);
        while found.is_hashed() {
            let key = self.keys.read(id);
            let now = state.load(Ordering::Acquire);
            if now.is_hashed() && now.seq() == found.seq() {
                return Some(key);
            }
            found = now;
        }
        None
    }

    /// How old a cached copy is among copies of the same key; `None` if there are no copies.
    pub(super) fn stamp_of(&self, id: BlockId) -> Option<u64> {
        let stamps = self.stamps.as_ref()?;
        Some(stamps.of[id as usize].load(Ordering::Relaxed))
    }
}

impl Stamps {
    fn stamp(&self, id: BlockId) {
        let now = self.next.fetch_add(1, Ordering::Relaxed);
        self.of[id as usize].store(now, Ordering::Relaxed);
    }
}

fn publishable(id: BlockId, state: BlockState) -> Result<BlockState, PoolError> {
    if state.is_free() {
        Err(PoolError::FreeBlock { id })
    } else if !state.is_plain() {
        Err(PoolError::AlreadyPublished { id })
    } else {
        Ok(state)
    }
}
