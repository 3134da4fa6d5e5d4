//! Finding blocks by the key of their content.

use super::BlockPool;
use crate::BlockId;
use crate::block_state::{BlockState, MAX_REFS};
use crate::error::OutOfBlocks;
use crate::prefix_contents::{Mismatch, Prefix, PrefixId, Wanted};
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

    /// Takes a reference on the block of each leading key that is cached, writes their ids to `out`
    /// and returns how many. Looks at no more keys than `out` has room for.
    pub fn match_prefix<'a>(&self, prefix: impl Into<Prefix<'a>>, out: &mut [BlockId]) -> usize {
        let prefix = prefix.into();
        let (candidates, free) = self.find_prefix(&prefix, out);
        // If the free hits cannot be reserved at once, another thread is taking blocks; each is
        // then reserved on its own, as far as it goes.
        let reserved = self.availability.reserve(free).is_ok();
        let mut grant = Grant::of(if reserved { free } else { 0 });
        let hits = self.acquire_prefix(&prefix, &mut out[..candidates], &mut grant);
        self.availability.settle(grant.units, grant.touched);
        hits
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
    pub fn admit<'a>(
        &self,
        prefix: impl Into<Prefix<'a>>,
        hits: &mut [BlockId],
        new: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        let prefix = prefix.into();
        let (candidates, free) = self.find_prefix(&prefix, hits);
        self.reserve(free + new.len())?;
        let mut grant = Grant::of(free);
        let taken = self.acquire_prefix(&prefix, &mut hits[..candidates], &mut grant);
        self.collect(new);
        self.availability.settle(grant.units, grant.touched);
        Ok(taken)
    }

    /// [`admit`](Self::admit) for callers that have looked: `found` are blocks that held these
    /// contents, `free` of which nobody held. If not all of them can be had any more, takes those before the
    /// first that cannot, and none of `new`. Returns how many it took.
    pub(crate) fn admit_found<'a>(
        &self,
        mut found: impl Iterator<Item = (Wanted<'a>, &'a mut BlockId)>,
        free: usize,
        new: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        self.reserve(free + new.len())?;
        let mut grant = Grant::of(free);
        let mut taken = 0;
        let all_taken = found.all(|(wanted, id)| {
            let name = self.acquire_found(&wanted, id, &mut grant);
            taken += usize::from(name.is_some());
            name.is_some()
        });
        if all_taken {
            self.collect(new);
        } else {
            grant.units += new.len() as u32;
        }
        self.availability.settle(grant.units, grant.touched);
        Ok(taken)
    }

    /// Admits a sequence of `table.len()` blocks: the cached part of the prefix, as
    /// [`match_prefix`](Self::match_prefix), and behind it new blocks for the rest. Takes all of
    /// them or none, and returns how many are hits.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if fewer blocks are free than that takes; nothing has changed.
    pub fn admit_table<'a>(
        &self,
        prefix: impl Into<Prefix<'a>>,
        table: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        let prefix = prefix.into();
        let (candidates, free) = self.find_prefix(&prefix, table);
        let fresh = table.len() - candidates;
        self.reserve(free + fresh)?;
        let mut grant = Grant::of(free);
        let taken = self.acquire_prefix(&prefix, &mut table[..candidates], &mut grant);
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

    pub(super) fn block_of<'a>(
        &self,
        prefix: &Prefix<'a>,
        index: usize,
        after: PrefixId,
    ) -> Wanted<'a> {
        prefix.block(index, self.config.verify_tokens as usize, after)
    }

    /// The block that a hit on this content returns now. With several copies it is the one
    /// published first.
    pub(crate) fn find(&self, wanted: &Wanted<'_>) -> Option<Found> {
        self.find_at(self.index.home(&wanted.key), wanted)
    }

    pub(super) fn find_at(&self, home: Home, wanted: &Wanted<'_>) -> Option<Found> {
        let mut oldest: Option<(u64, Found)> = None;
        let only = self.index.find(home, |id| {
            let found = self.look_at(id, wanted)?;
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
    fn look_at(&self, id: BlockId, wanted: &Wanted<'_>) -> Option<Found> {
        let cell = self.state(id);
        let mut state = cell.load(Ordering::Acquire);
        while state.is_hashed() && self.keys.matches(id, &wanted.key) {
            let Some(contents) = &self.contents else {
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
    fn find_prefix(&self, prefix: &Prefix<'_>, out: &mut [BlockId]) -> (usize, usize) {
        let (mut hits, mut free) = (0, 0);
        let mut after = PrefixId::root(prefix.group);
        for (index, slot) in (0..prefix.keys.len()).zip(out) {
            let Some(found) = self.find(&self.block_of(prefix, index, after)) else {
                break;
            };
            *slot = found.id;
            after = found.name;
            hits += 1;
            free += usize::from(found.state.is_free());
        }
        (hits, free)
    }

    /// Takes the leading blocks of a prefix, which were found in `found`; returns how many it could
    /// take.
    fn acquire_prefix(
        &self,
        prefix: &Prefix<'_>,
        found: &mut [BlockId],
        grant: &mut Grant,
    ) -> usize {
        // Not the names that were seen when the blocks were found: what was taken meanwhile may be
        // another copy.
        let mut after = PrefixId::root(prefix.group);
        let mut taken = 0;
        for (index, id) in found.iter_mut().enumerate() {
            let wanted = self.block_of(prefix, index, after);
            let Some(name) = self.acquire_found(&wanted, id, grant) else {
                break;
            };
            after = name;
            taken += 1;
        }
        taken
    }

    /// Takes a block that was found to hold the content, or another one if it went away.
    fn acquire_found(
        &self,
        wanted: &Wanted<'_>,
        id: &mut BlockId,
        grant: &mut Grant,
    ) -> Option<PrefixId> {
        self.acquire(*id, wanted, grant).or_else(|| {
            let other = self.find(wanted)?;
            let name = self.acquire(other.id, wanted, grant)?;
            *id = other.id;
            Some(name)
        })
    }

    /// The name of the prefix that ends with the block, if it holds the content. Only to be relied
    /// on after a swap of a state that was loaded before.
    fn holds(&self, id: BlockId, wanted: &Wanted<'_>) -> Option<PrefixId> {
        if !self.keys.matches(id, &wanted.key) {
            return None;
        }
        match &self.contents {
            None => Some(PrefixId::root(0)),
            Some(contents) => contents.compare(id, wanted).ok(),
        }
    }

    /// Takes one reference if the block holds the content. The swap that takes it is also what
    /// confirms the comparison: the word is the same as before it, so the tenancy and what it
    /// holds are (INV-5).
    fn acquire(&self, id: BlockId, wanted: &Wanted<'_>, grant: &mut Grant) -> Option<PrefixId> {
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        while found.is_hashed()
            && let Some(name) = self.holds(id, wanted)
        {
            let free = found.is_free();
            if free {
                // A free block may be promised to an allocation; only with a unit of our own may
                // we take one (INV-4).
                if grant.units == 0 {
                    if self.availability.reserve(1).is_err() {
                        return None;
                    }
                    grant.units = 1;
                }
            } else if found.refs() == MAX_REFS {
                return None;
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
                    return Some(name);
                }
                Err(now) => found = now,
            }
        }
        None
    }
}
