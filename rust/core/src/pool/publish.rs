//! Making a block's content findable, and forgetting it.

use super::{BlockPool, Stamps};
use crate::BlockId;
use crate::block_key::BlockKey;
use crate::block_state::BlockState;
use crate::config::DuplicatePolicy;
use crate::error::PoolError;
use crate::events::BlockContent;
use crate::prefix_contents::{Prefix, PrefixId, Wanted, as_verified};
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
    /// than the pool keeps are refused, and [`PoolError::TokensNeeded`] says that the pool verifies
    /// tokens; nothing has changed then.
    pub fn publish(&self, id: BlockId, key: &BlockKey) -> Result<Published, PoolError> {
        self.publish_content(id, key, &BlockContent::default())
    }

    /// As [`publish`](Self::publish), for a block of one of several groups, and with what the
    /// [`Stored`](crate::Event::Stored) event is to say about it. `key` is that of the hash chain:
    /// the block will be found under [`key.with_group(content.group)`](BlockKey::with_group).
    ///
    /// # Errors
    /// As for `publish`; also [`PoolError::TooManyTokens`], unless the pool leaves tokens out, and
    /// [`PoolError::TokensNeeded`] if it verifies them.
    pub fn publish_content(
        &self,
        id: BlockId,
        key: &BlockKey,
        content: &BlockContent<'_>,
    ) -> Result<Published, PoolError> {
        let published = self.publish_named(id, key, content)?;
        Ok(published.0)
    }

    /// As [`publish_content`](Self::publish_content), and names the prefix that ends with the
    /// block: what the block behind it is to continue, as its content's
    /// [`after`](BlockContent::after), in a pool that verifies tokens.
    ///
    /// # Errors
    /// As for `publish_content`.
    pub fn publish_named(
        &self,
        id: BlockId,
        key: &BlockKey,
        content: &BlockContent<'_>,
    ) -> Result<(Published, PrefixId), PoolError> {
        self.publish_as(id, key, content, None)
    }

    /// As `publish_named`, with the name that the prefix has if no cached block tells another: one
    /// that this pool made for this very prefix.
    pub(crate) fn publish_as(
        &self,
        id: BlockId,
        key: &BlockKey,
        content: &BlockContent<'_>,
        name: Option<PrefixId>,
    ) -> Result<(Published, PrefixId), PoolError> {
        self.check_id(id)?;
        self.check_content(key, content)?;
        let chain_key = key;
        let wanted = content.wanted(key);
        let key = &wanted.key;
        let state = self.state(id);
        let mut found = publishable(id, state.load(Ordering::Relaxed))?;
        let home = self.index.home(key);
        let first_wins = self.config.duplicate_policy == DuplicatePolicy::FirstWins;
        let look = first_wins || self.verifies();
        let find = || as_verified!(self.find_at(home, &wanted));
        let equal = look.then(find).flatten();
        if first_wins && let Some(equal) = equal {
            self.counters.duplicates.add(1);
            return Ok((Published::Duplicate, equal.name));
        }
        // A copy has the name of the others, so that what follows is found behind any of them.
        let name = equal.map(|equal| equal.name).or(name);
        let name = name.unwrap_or_else(|| self.fresh_name());
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
        if let Some(contents) = &self.contents {
            contents.write(id, &wanted, name);
        }
        if let Some(stamps) = &self.stamps {
            stamps.stamp(id);
        }
        // Enter first, then become `hashed`: whoever ends the hashed state finds its entry there.
        if !self.index.insert(home, id) {
            state.abandon_publish(Ordering::Relaxed);
            self.counters.table_overflows.add(1);
            return Ok((Published::Full, name));
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
        Ok((Published::Cached, name))
    }

    /// [`publish`](Self::publish)es the blocks of a prefix from the `start`-th on, each under its key,
    /// and returns how many of them can be hit now. A pool that verifies tokens finds those before
    /// them by their content first, to know what they continue.
    ///
    /// # Errors
    /// As for `publish_content`, and before anything is changed; only a call that races for one of the
    /// blocks can make it fail half-way.
    ///
    /// # Panics
    /// If there are not as many keys as blocks.
    pub fn publish_prefix<'a>(
        &self,
        ids: &[BlockId],
        prefix: impl Into<Prefix<'a>>,
        start: usize,
    ) -> Result<usize, PoolError> {
        let prefix = prefix.into();
        assert_eq!(ids.len(), prefix.keys.len(), "one key per block");
        let mut after = PrefixId::root(prefix.group);
        for (index, id) in ids.iter().enumerate().skip(start) {
            let (key, content) = self.content_of(&prefix, index, after);
            self.check_id(*id)?;
            self.check_content(key, &content)?;
            publishable(*id, self.state(*id).load(Ordering::Relaxed))?;
        }
        self.check_distinct(ids.get(start..).unwrap_or_default())?;
        if self.verifies() {
            for index in 0..start.min(ids.len()) {
                after = self.name_of(&self.block_of(&prefix, index, after));
            }
        }
        let mut cached = 0;
        for (index, id) in ids.iter().enumerate().skip(start) {
            let (key, content) = self.content_of(&prefix, index, after);
            let (published, name) = self.publish_named(*id, key, &content)?;
            cached += usize::from(published == Published::Cached);
            after = name;
        }
        Ok(cached)
    }

    /// The key of one block of a prefix, and what is known of it.
    fn content_of<'a>(
        &self,
        prefix: &Prefix<'a>,
        index: usize,
        after: PrefixId,
    ) -> (&'a BlockKey, BlockContent<'a>) {
        let content = BlockContent {
            parent: index.checked_sub(1).map(|before| prefix.keys[before]),
            tokens: self.block_of(prefix, index, after).tokens,
            group: prefix.group,
            after: Some(after),
        };
        (&prefix.keys[index], content)
    }

    pub(crate) fn fresh_name(&self) -> PrefixId {
        let contents = self.contents.as_ref();
        contents.map_or(PrefixId::root(0), |contents| contents.fresh_name())
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
        let expected = self.config.verify_tokens as usize;
        if found != expected && expected != 0 {
            return Err(PoolError::TokensNeeded { found, expected });
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

impl<'a> BlockContent<'a> {
    pub(crate) fn wanted(&self, key: &BlockKey) -> Wanted<'a> {
        Wanted {
            key: key.with_group(self.group),
            tokens: self.tokens,
            after: self.after.unwrap_or(PrefixId::root(self.group)),
        }
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
