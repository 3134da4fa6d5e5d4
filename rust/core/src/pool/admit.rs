//! Taking references on blocks by what they contain, and new blocks behind them.

use super::BlockPool;
use crate::BlockId;
use crate::block_state::MAX_REFS;
use crate::error::OutOfBlocks;
use crate::prefix_contents::{Prefix, PrefixId, Wanted, as_verified};
use crate::sync::Ordering;

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

    /// [`admit`](Self::admit) for callers that have looked: `found` are places in a prefix and blocks
    /// that held what is `wanted` there, `free` of which nobody held. If not all of them can be had
    /// any more, takes those before the first that cannot, and none of `new`. Returns how many it took.
    pub(crate) fn admit_found<'a>(
        &self,
        found: impl Iterator<Item = (usize, &'a mut BlockId)>,
        wanted: impl Fn(usize) -> Wanted<'a>,
        free: usize,
        new: &mut [BlockId],
    ) -> Result<usize, OutOfBlocks> {
        self.reserve(free + new.len())?;
        let mut grant = Grant::of(free);
        let (taken, all_taken) = as_verified!(self.acquire_all(found, wanted, &mut grant));
        if all_taken {
            self.collect(new);
        } else {
            grant.units += new.len() as u32;
        }
        self.availability.settle(grant.units, grant.touched);
        Ok(taken)
    }

    /// Takes found blocks up to the first that cannot be had; returns how many, and whether that is
    /// all.
    fn acquire_all<'a, const VERIFY: bool>(
        &self,
        found: impl Iterator<Item = (usize, &'a mut BlockId)>,
        wanted: impl Fn(usize) -> Wanted<'a>,
        grant: &mut Grant,
    ) -> (usize, bool) {
        let mut taken = 0;
        for (place, id) in found {
            let wanted = wanted(place);
            if self.acquire_found::<VERIFY>(&wanted, id, grant).is_none() {
                return (taken, false);
            }
            taken += 1;
        }
        (taken, true)
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

    /// Takes the leading blocks of a prefix, which were found in `found`; returns how many it could
    /// take.
    fn acquire_prefix(
        &self,
        prefix: &Prefix<'_>,
        found: &mut [BlockId],
        grant: &mut Grant,
    ) -> usize {
        as_verified!(self.acquire_prefix_as(prefix, found, grant))
    }

    fn acquire_prefix_as<const VERIFY: bool>(
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
            let wanted = self.wanted::<VERIFY>(prefix, index, after);
            let Some(name) = self.acquire_found::<VERIFY>(&wanted, id, grant) else {
                break;
            };
            after = name;
            taken += 1;
        }
        taken
    }

    /// Takes a block that was found to hold the content, or another one if it went away.
    fn acquire_found<const VERIFY: bool>(
        &self,
        wanted: &Wanted<'_>,
        id: &mut BlockId,
        grant: &mut Grant,
    ) -> Option<PrefixId> {
        self.acquire::<VERIFY>(*id, wanted, grant).or_else(|| {
            let other = self.find(wanted)?;
            let name = self.acquire::<VERIFY>(other.id, wanted, grant)?;
            *id = other.id;
            Some(name)
        })
    }

    /// The name of the prefix that ends with the block, if it holds the content. Only to be relied
    /// on after a swap of a state that was loaded before.
    fn holds<const VERIFY: bool>(&self, id: BlockId, wanted: &Wanted<'_>) -> Option<PrefixId> {
        if !self.keys.matches(id, &wanted.key) {
            return None;
        }
        match self.compared::<VERIFY>() {
            None => Some(PrefixId::root(0)),
            Some(contents) => contents.compare(id, wanted).ok(),
        }
    }

    /// Takes one reference if the block holds the content. The swap that takes it is also what
    /// confirms the comparison: the word is the same as before it, so the tenancy and what it
    /// holds are (INV-5).
    fn acquire<const VERIFY: bool>(
        &self,
        id: BlockId,
        wanted: &Wanted<'_>,
        grant: &mut Grant,
    ) -> Option<PrefixId> {
        let state = self.state(id);
        let mut found = state.load(Ordering::Acquire);
        while found.is_hashed()
            && let Some(name) = self.holds::<VERIFY>(id, wanted)
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
