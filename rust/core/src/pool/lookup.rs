//! Finding blocks by the key of their content.

use super::BlockPool;
use crate::BlockId;
use crate::block_state::BlockState;
use crate::prefix_contents::{Mismatch, Prefix, PrefixContents, PrefixId, Wanted, as_verified};
use crate::prefix_index::Home;
use crate::sync::Ordering;

/// How much of a prefix is cached, at the moment of asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixPeek {
    /// Blocks of the prefix that are cached.
    pub hits: usize,
    /// Of those, the ones that nobody holds: taking them makes that many blocks fewer free.
    pub free_hits: usize,
}

/// A block that holds what was looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) id: BlockId,
    /// As it was when the content was compared.
    pub(crate) state: BlockState,
    /// The prefix that ends with the block.
    pub(crate) name: PrefixId,
}

impl BlockPool {
    /// How much of the prefix is cached. Changes nothing, the free order included.
    ///
    /// The prefix is that of [`Prefix`]: keys alone, from which it can be made, or with tokens.
    pub fn peek_prefix<'a>(&self, prefix: impl Into<Prefix<'a>>) -> PrefixPeek {
        let prefix = prefix.into();
        let mut peek = PrefixPeek::default();
        let mut after = PrefixId::root(prefix.group);
        for index in 0..prefix.keys.len() {
            let Some(found) = self.find(&self.block_of(&prefix, index, after)) else {
                break;
            };
            after = found.name;
            peek.hits += 1;
            peek.free_hits += usize::from(found.state.is_free());
        }
        peek
    }

    pub(super) fn block_of<'a>(
        &self,
        prefix: &Prefix<'a>,
        index: usize,
        after: PrefixId,
    ) -> Wanted<'a> {
        prefix.block(index, self.config.verify_tokens as usize, after)
    }

    pub(super) fn wanted<'a, const VERIFY: bool>(
        &self,
        prefix: &Prefix<'a>,
        index: usize,
        after: PrefixId,
    ) -> Wanted<'a> {
        if VERIFY {
            self.block_of(prefix, index, after)
        } else {
            Wanted::of_key(prefix.key(index))
        }
    }

    /// The block that a hit on this content returns now. With several copies it is the one
    /// published first.
    pub(crate) fn find(&self, wanted: &Wanted<'_>) -> Option<Found> {
        as_verified!(self.find_as(wanted))
    }

    /// `VERIFY` says whether the pool compares tokens. Inlined, and so is what it calls: handed back
    /// through memory, what was found would be read in other widths than it was written in, and stall
    /// the processor at every block.
    #[inline(always)]
    pub(crate) fn find_as<const VERIFY: bool>(&self, wanted: &Wanted<'_>) -> Option<Found> {
        self.find_at::<VERIFY>(self.index.home(&wanted.key), wanted)
    }

    #[inline(always)]
    pub(super) fn find_at<const VERIFY: bool>(
        &self,
        home: Home,
        wanted: &Wanted<'_>,
    ) -> Option<Found> {
        let mut oldest: Option<(u64, Found)> = None;
        let only = self.index.find(home, |id| {
            let found = self.look_at::<VERIFY>(id, wanted)?;
            let Some(stamp) = self.stamp_of(id) else {
                return Some(found);
            };
            if oldest.is_none_or(|(oldest, _)| stamp < oldest) {
                oldest = Some((stamp, found));
            }
            None
        });
        only.or(oldest.map(|(_, found)| found))
    }

    /// Whether the block holds the content, without taking it.
    #[inline(always)]
    fn look_at<const VERIFY: bool>(&self, id: BlockId, wanted: &Wanted<'_>) -> Option<Found> {
        let cell = self.state(id);
        let mut state = cell.load(Ordering::Acquire);
        while state.is_hashed() && self.keys.matches(id, &wanted.key) {
            let Some(contents) = self.compared::<VERIFY>() else {
                // Whoever acts on this compares again, under a swap.
                let name = PrefixId::root(0);
                return Some(Found { id, state, name });
            };
            // A name is used without a swap, and a collision is counted: make sure that they were
            // read in one tenancy.
            let compared = contents.compare(id, wanted);
            let now = cell.load(Ordering::Acquire);
            if now.is_hashed() && now.seq() == state.seq() {
                match compared {
                    Ok(name) => {
                        let state = now;
                        return Some(Found { id, state, name });
                    }
                    Err(Mismatch::Tokens) => self.counters.collisions.add(1),
                    Err(Mismatch::Prefix) => self.counters.orphans.add(1),
                }
                return None;
            }
            state = now;
        }
        None
    }

    /// The name of the prefix that ends with this content: that of a cached block, or a new one.
    pub(crate) fn name_of(&self, wanted: &Wanted<'_>) -> PrefixId {
        let look = self.contents.is_some();
        let found = look.then(|| self.find(wanted)).flatten();
        found.map_or_else(|| self.fresh_name(), |found| found.name)
    }

    /// Writes the blocks that would be hit to `out`; returns how many, and how many are free.
    pub(super) fn find_prefix(&self, prefix: &Prefix<'_>, out: &mut [BlockId]) -> (usize, usize) {
        as_verified!(self.find_prefix_as(prefix, out))
    }

    fn find_prefix_as<const VERIFY: bool>(
        &self,
        prefix: &Prefix<'_>,
        out: &mut [BlockId],
    ) -> (usize, usize) {
        let (mut hits, mut free) = (0, 0);
        let mut after = PrefixId::root(prefix.group);
        for (index, slot) in (0..prefix.keys.len()).zip(out) {
            let wanted = self.wanted::<VERIFY>(prefix, index, after);
            let Some(found) = self.find_as::<VERIFY>(&wanted) else {
                break;
            };
            *slot = found.id;
            after = found.name;
            hits += 1;
            free += usize::from(found.state.is_free());
        }
        (hits, free)
    }

    /// What to compare beside the key.
    pub(super) fn compared<const VERIFY: bool>(&self) -> Option<&PrefixContents> {
        if VERIFY {
            self.contents.as_deref()
        } else {
            None
        }
    }
}
