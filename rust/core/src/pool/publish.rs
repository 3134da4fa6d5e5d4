//! Making a block's content findable, and forgetting it.

use super::{BlockPool, Stamps};
use crate::BlockId;
use crate::block_key::BlockKey;
use crate::block_state::BlockState;
use crate::config::DuplicatePolicy;
use crate::error::PoolError;
use crate::events::BlockContent;
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
        self.publish_content(id, key, &BlockContent::default())
    }

    /// As [`publish`](Self::publish), for a block of one of several groups, and with what the
    /// [`Stored`](crate::Event::Stored) event is to say about it. `key` is that of the hash chain:
    /// the block will be found under [`key.with_group(content.group)`](BlockKey::with_group).
    ///
    /// # Errors
    /// As for `publish`; also [`PoolError::TooManyTokens`], unless the pool leaves tokens out.
    pub fn publish_content(
        &self,
        id: BlockId,
        key: &BlockKey,
        content: &BlockContent<'_>,
    ) -> Result<Published, PoolError> {
        self.check_id(id)?;
        self.check_content(key, content)?;
        let chain_key = key;
        let key = &key.with_group(content.group);
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
        // Told before, so that nobody can tell first that the hash has gone (INV-13).
        let is_told = self.events.as_ref().is_none_or(|log| {
            let seq = found.publishing().seq();
            log.stored(id, seq, chain_key, content)
        });
        // Release: a look-up that sees `hashed` (Acquire) sees the key, the stamp and the content.
        state.finish_publish(Ordering::Release);
        if !is_told && let Some(log) = &self.events {
            log.lose();
        }
        Ok(Published::Cached)
    }

    /// [`publish`](Self::publish)es the blocks of a prefix from the `start`-th on, each under its key,
    /// and returns how many of them can be hit now.
    ///
    /// # Errors
    /// As for `publish`, and before anything is changed; only a call that races for one of the blocks
    /// can make it fail half-way.
    ///
    /// # Panics
    /// If there are not as many keys as blocks.
    pub fn publish_prefix(
        &self,
        ids: &[BlockId],
        keys: &[BlockKey],
        start: usize,
    ) -> Result<usize, PoolError> {
        assert_eq!(ids.len(), keys.len(), "one key per block");
        let nothing = BlockContent::default();
        for (id, key) in ids.iter().zip(keys).skip(start) {
            self.check_id(*id)?;
            self.check_content(key, &nothing)?;
            publishable(*id, self.state(*id).load(Ordering::Relaxed))?;
        }
        self.check_distinct(ids.get(start..).unwrap_or_default())?;
        let mut cached = 0;
        for (index, (id, key)) in ids.iter().zip(keys).enumerate().skip(start) {
            let content = BlockContent {
                parent: index.checked_sub(1).map(|before| keys[before]),
                ..nothing
            };
            cached += usize::from(self.publish_content(*id, key, &content)? == Published::Cached);
        }
        Ok(cached)
    }

    fn check_content(&self, key: &BlockKey, content: &BlockContent<'_>) -> Result<(), PoolError> {
        let width = self.keys.width();
        if !key.fits(width) || content.parent.is_some_and(|parent| !parent.fits(width)) {
            return Err(PoolError::KeyTooWide { bits: width.bits() });
        }
        let (found, max) = (content.tokens.len(), self.config.event_tokens as usize);
        if found > max && max != 0 {
            return Err(PoolError::TooManyTokens { found, max });
        }
        Ok(())
    }

    /// Forgets a block's hash; its holders and its place in the free queue stay. Returns whether
    /// there was one. The caller need not hold the block.
    ///
    /// # Errors
    /// Unknown and null ids are refused.
    pub fn retract(&self, id: BlockId) -> Result<bool, PoolError> {
        self.check_id(id)?;
        let retracted = self.forget(id);
        if let Some(found) = retracted {
            self.tell_removed(id, found);
        }
        Ok(retracted.is_some())
    }

    /// Takes the block's hash, if it has one, and returns the state in which it had it. The caller
    /// sees to the event.
    fn forget(&self, id: BlockId) -> Option<BlockState> {
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
                    return Some(found);
                }
                Err(now) => found = now,
            }
        }
        None
    }

    /// The caller's swap has taken a hash from the block, which was in this state before.
    pub(super) fn tell_removed(&self, id: BlockId, before: BlockState) {
        if let Some(log) = &self.events {
            log.removed(id, before.seq());
        }
    }

    /// Forgets every hash. The order of the free queue stays. A reader of events is told once, not
    /// block by block.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks are held; nothing has changed then.
    pub fn reset_prefix_cache(&self) -> Result<(), PoolError> {
        let blocks = self.num_usable() - self.num_free();
        if blocks != 0 {
            return Err(PoolError::InUse { blocks });
        }
        for id in self.config.first_usable()..self.config.num_blocks {
            self.forget(id);
        }
        if let Some(log) = &self.events {
            log.reset();
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
