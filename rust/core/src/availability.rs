//! The counter that makes allocation all-or-nothing.

use crate::sync::{AtomicU64, CachePadded, Ordering};

const CACHED_SHIFT: u32 = 32;
const FREE_MASK: u64 = (1 << CACHED_SHIFT) - 1;

/// Free blocks that nobody has reserved, and beside it in the same word how many free blocks still
/// carry a hash.
///
/// Conservation (INV-2, INV-4): blocks with references + `free` + units reserved by calls in
/// progress = usable blocks; and a unit is added only after its block can be found, so a granted
/// reservation can always be filled.
///
/// The word is only ever changed by read-modify-writes. A reservation therefore synchronises with
/// every earlier release, not just the last one.
#[derive(Debug)]
pub(crate) struct Availability(CachePadded<AtomicU64>);

/// A reading of [`Availability`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Available {
    pub(crate) free: u32,
    pub(crate) cached: u32,
}

impl Availability {
    pub(crate) fn new(free: u32) -> Self {
        Self(CachePadded(AtomicU64::new(u64::from(free))))
    }

    /// Takes `count` units, or none and says what there was.
    pub(crate) fn reserve(&self, count: usize) -> Result<(), Available> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if ((word & FREE_MASK) as usize) < count {
                return Err(reading(word));
            }
            // Acquire: the queue entries behind the units are visible from here on.
            match self.0.compare_exchange_weak(
                word,
                word - count as u64,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(found) => word = found,
            }
        }
    }

    /// Adds `free` units, `cached` of whose blocks carry a hash. Release: their queue entries are
    /// written before.
    pub(crate) fn add(&self, free: u32, cached: u32) {
        if free != 0 {
            self.0.fetch_add(packed(free, cached), Ordering::Release);
        }
    }

    /// Gives back `unused` units of a reservation and takes `no_longer_cached` blocks out of the
    /// cached count. Relaxed: no block becomes visible by it, and the addition continues the
    /// release sequences of earlier ones.
    pub(crate) fn settle(&self, unused: u32, no_longer_cached: u32) {
        if unused != 0 || no_longer_cached != 0 {
            let change = packed(unused, 0).wrapping_sub(packed(0, no_longer_cached));
            self.0.fetch_add(change, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Available {
        reading(self.0.load(Ordering::Relaxed))
    }
}

fn packed(free: u32, cached: u32) -> u64 {
    u64::from(cached) << CACHED_SHIFT | u64::from(free)
}

/// The cached count can be below zero for a moment: a block may be evicted before the call that
/// released it has added its unit. It wraps in the upper half without touching the lower one.
fn reading(word: u64) -> Available {
    let cached = (word >> CACHED_SHIFT) as u32 as i32;
    Available {
        free: (word & FREE_MASK) as u32,
        cached: cached.max(0) as u32,
    }
}
