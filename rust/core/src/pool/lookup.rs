//! Finding blocks by the key of their content.

use super::BlockPool;
use crate::BlockId;
use crate::block_key::BlockKey;
use crate::block_state::{BlockState, MAX_REFS};
use crate::error::OutOfBlocks;
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

/// Units that a look-up reserved for free hits, and how it spent them.
#[derive(Default)]
struct Grant {
    units: u32,
    touched: u32,
}

impl Grant {
    fn of(units: usize) -> Self {
        Self {
            units: units as u32,
            touched: 0,
        }
    }
}

impl BlockPool {
    /// How many leading keys are cached. Changes nothing, the free order included.
    pub fn peek_prefix(&self, keys: &[BlockKey]) -> PrefixPeek {
        let mut peek = PrefixPeek::default();
        for (_, state) in keys.iter().map_while(|key| self.find(key)) {
            peek.hits += 1;
            peek.free_hits += usize::from(state.is_free());
        }
        peek
    }

    /// Takes a reference on the block of each leading key that is cached, writes their ids to `out`
    /// and returns how many. Looks at no more keys than `out` has room for.
    pub fn match_prefix(&self, keys: &[BlockKey], out: &mut [BlockId]) -> usize {
        let (candidates, free) = self.find_prefix(keys, out);
        // If the free hits cannot be reserved at once, another thread is taking blocks; each is
        // then reserved on its own, as far as it goes.
        let reserved = self.availability.reserve(free).is_ok();
        let mut grant = Grant::of(if reserved { free } else { 0 });
        let hits = self.acquire_prefix(pairs(keys, &mut out[..candidates]), &mut grant);
        self.availability.settle(grant.units, grant.touched);
        hits.unwrap_or_else(|hits| hits)
    }

    /// Admits a sequence: takes a reference on the block of each leading key that is cached, as
    /// [`match_prefix`](Self::match_prefix), and fills `new` with blocks that only the caller
    /// holds. Takes all of `new` and the hits, or nothing at all.
    ///
    /// Returns the hits taken. They can be fewer than a [peek](Self::peek_prefix) promised when
    /// another thread evicts or retracts one meanwhile; `new` is filled nevertheless.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if the free hits and `new` together are more than the free blocks.
    pub fn admit(
        &self,
        keys: &[BlockKey],
        hits: &mut [BlockId],
        new: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        let (candidates, free) = self.find_prefix(keys, hits);
        self.reserve(free + new.len())?;
        let mut grant = Grant::of(free);
        let taken = self.acquire_prefix(pairs(keys, &mut hits[..candidates]), &mut grant);
        self.collect(new);
        self.availability.settle(grant.units, grant.touched);
        Ok(taken.unwrap_or_else(|taken| taken))
    }

    /// [`admit`](Self::admit) for callers that have looked: `found` are blocks that held these keys,
    /// `free` of which nobody held. If not all of them can be had any more, takes those before the
    /// first that cannot, and none of `new`. Returns how many it took.
    pub(crate) fn admit_found<'a>(
        &self,
        found: impl Iterator<Item = (BlockKey, &'a mut BlockId)>,
        free: usize,
        new: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        self.reserve(free + new.len())?;
        let mut grant = Grant::of(free);
        let taken = self.acquire_prefix(found, &mut grant);
        match taken {
            Ok(_) => self.collect(new),
            Err(_) => grant.units += new.len() as u32,
        }
        self.availability.settle(grant.units, grant.touched);
        Ok(taken.unwrap_or_else(|taken| taken))
    }

    /// Admits a sequence of `table.len()` blocks: the cached prefix of `keys`, as
    /// [`match_prefix`](Self::match_prefix), and behind it new blocks for the rest. Takes all of
    /// them or none, and returns how many are hits.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if fewer blocks are free than that takes; nothing has changed.
    pub fn admit_table(
        &self,
        keys: &[BlockKey],
        table: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        let (candidates, free) = self.find_prefix(keys, table);
        let fresh = table.len() - candidates;
        self.reserve(free + fresh)?;
        let mut grant = Grant::of(free);
        let taken = self.acquire_prefix(pairs(keys, &mut table[..candidates]), &mut grant);
        let taken = taken.unwrap_or_else(|taken| taken);
        // Each hit that another thread took away is replaced by a new block, out of the units that
        // were meant for hits as far as they go.
        let lost = candidates - taken;
        let spent = lost.min(grant.units as usize);
        let missing = self.reserve(lost - spent);
        if missing.is_ok() {
            grant.units -= spent as u32;
            self.collect(&mut table[taken..]);
        } else {
            grant.units += fresh as u32;
        }
        self.availability.settle(grant.units, grant.touched);
        if missing.is_err() {
            table[..taken].reverse();
            self.release_distinct(&table[..taken])
                .expect("the hits were just taken");
        }
        missing.map(|()| taken)
    }

    /// The block that a hit on `key` returns now, with the state that was seen. With several
    /// copies it is the one published first.
    pub(crate) fn find(&self, key: &BlockKey) -> Option<(BlockId, BlockState)> {
        self.find_at(self.index.home(key), key)
    }

    pub(super) fn find_at(&self, home: Home, key: &BlockKey) -> Option<(BlockId, BlockState)> {
        let mut oldest: Option<(u64, (BlockId, BlockState))> = None;
        let only = self.index.find(home, |id| {
            let state = self.state(id).load(Ordering::Acquire);
            if !state.is_hashed() || !self.keys.matches(id, key) {
                return None;
            }
            let Some(stamp) = self.stamp_of(id) else {
                return Some((id, state));
            };
            if oldest.is_none_or(|(oldest, _)| stamp < oldest) {
                oldest = Some((stamp, (id, state)));
            }
            None
        });
        only.or(oldest.map(|(_, found)| found))
    }

    /// Writes the blocks that would be hit to `out`; returns how many, and how many are free.
    fn find_prefix(&self, keys: &[BlockKey], out: &mut [BlockId]) -> (usize, usize) {
        let (mut hits, mut free) = (0, 0);
        for (key, slot) in keys.iter().zip(out) {
            let Some((id, state)) = self.find(key) else {
                break;
            };
            *slot = id;
            hits += 1;
            free += usize::from(state.is_free());
        }
        (hits, free)
    }

    /// Takes blocks that were found under these keys in order, looking once more for those that went
    /// away; stops at the first key that is gone. The number taken is an error if not all were.
    fn acquire_prefix<'a>(
        &self,
        found: impl Iterator<Item = (BlockKey, &'a mut BlockId)>,
        grant: &mut Grant,
    ) -> Result<usize, usize> {
        let mut taken = 0;
        for (key, id) in found {
            if !self.acquire(*id, &key, grant) {
                match self.find(&key) {
                    Some((other, _)) if self.acquire(other, &key, grant) => *id = other,
                    _ => return Err(taken),
                }
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes one reference if the block holds `key`. The swap that takes it is also what confirms
    /// the comparison: the word is the same as before it, so the tenancy and its key are.
    fn acquire(&self, id: BlockId, key: &BlockKey, grant: &mut Grant) -> bool {
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        while found.is_hashed() && self.keys.matches(id, key) {
            let free = found.is_free();
            if free {
                // A free block may be promised to an allocation; only with a unit of our own may
                // we take one (INV-4).
                if grant.units == 0 {
                    if self.availability.reserve(1).is_err() {
                        return false;
                    }
                    grant.units = 1;
                }
            } else if found.refs() == MAX_REFS {
                return false;
            }
            let held = if free {
                found.touched()
            } else {
                found.shared()
            };
            // Acquire: the content was written before the publish that made the block hashed.
            match state.swap(found, held, Ordering::Acquire, Ordering::Acquire) {
                Ok(()) => {
                    grant.units -= u32::from(free);
                    grant.touched += u32::from(free);
                    return true;
                }
                Err(now) => found = now,
            }
        }
        false
    }
}

fn pairs<'a>(
    keys: &'a [BlockKey],
    ids: &'a mut [BlockId],
) -> impl Iterator<Item = (BlockKey, &'a mut BlockId)> {
    keys.iter().copied().zip(ids)
}
