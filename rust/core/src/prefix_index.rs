//! Where to look for the block that holds a key.
//!
//! A fixed table of 64-bit slots, each a 40-bit fingerprint over a block id, in buckets of one cache
//! line. A key belongs to two buckets and is entered into the emptier one, so nothing is displaced,
//! resized or left as a tombstone, and a look-up reads at most two lines (INV-12).
//!
//! An entry is a hint. Whether the block holds the key is decided by its state word and its stored
//! key, so entries may be late. Each tenancy enters its block before it becomes `hashed`, and
//! whoever takes it out of `hashed` removes one entry of the same value: between the two, entries
//! of equal value are interchangeable, so none leaks and none goes missing.

use crate::BlockId;
use crate::block_key::BlockKey;
use crate::sync::{AtomicU64, Ordering};

/// Slots of one bucket.
pub(crate) const MAX_WAYS: u32 = 8;

const ID_BITS: u32 = 24;
const ID_MASK: u64 = (1 << ID_BITS) - 1;

/// No entry looks like this: its id would be that of no block.
const EMPTY: u64 = u64::MAX;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; MAX_WAYS as usize]);

#[derive(Debug)]
pub(crate) struct PrefixIndex {
    buckets: Box<[Bucket]>,
    ways: usize,
}

/// Where a key belongs, and how its entries are told from others there.
#[derive(Clone, Copy)]
struct Home {
    buckets: [usize; 2],
    fingerprint: u64,
}

impl Home {
    fn entry(self, id: BlockId) -> u64 {
        self.fingerprint << ID_BITS | u64::from(id)
    }
}

impl PrefixIndex {
    /// `slots` is rounded up to whole buckets, of which there are at least two.
    pub(crate) fn new(slots: u32, ways: u32) -> Self {
        let buckets = slots.div_ceil(ways).max(2);
        let bucket = || Bucket(std::array::from_fn(|_| AtomicU64::new(EMPTY)));
        Self {
            buckets: (0..buckets).map(|_| bucket()).collect(),
            ways: ways as usize,
        }
    }

    /// Enters `id` under `key`; false if both buckets are full.
    pub(crate) fn insert(&self, key: &BlockKey, id: BlockId) -> bool {
        let home = self.home(key);
        loop {
            let Some(slot) = self.vacancy(home) else {
                return false;
            };
            // Release: a reader that sees the entry may then rely on whatever the state says.
            let inserted =
                slot.compare_exchange(EMPTY, home.entry(id), Ordering::Release, Ordering::Relaxed);
            if inserted.is_ok() {
                return true;
            }
        }
    }

    /// Removes one entry of `id` under `key`. Called exactly once per [`insert`](Self::insert), by
    /// whoever ended the block's hashed state. Relaxed: a removal publishes nothing.
    pub(crate) fn remove(&self, key: &BlockKey, id: BlockId) {
        let home = self.home(key);
        let entry = home.entry(id);
        for slot in self.slots(home) {
            if slot.load(Ordering::Relaxed) == entry
                && slot
                    .compare_exchange(entry, EMPTY, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
        }
    }

    /// Blocks that may hold `key`.
    pub(crate) fn candidates(&self, key: &BlockKey) -> impl Iterator<Item = BlockId> + '_ {
        let home = self.home(key);
        self.slots(home).filter_map(move |slot| {
            let entry = slot.load(Ordering::Acquire);
            (entry != EMPTY && entry >> ID_BITS == home.fingerprint)
                .then_some((entry & ID_MASK) as BlockId)
        })
    }

    /// The ids of all entries, in table order.
    pub(crate) fn entered(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.buckets
            .iter()
            .flat_map(|bucket| &bucket.0[..self.ways])
            .filter_map(|slot| {
                let entry = slot.load(Ordering::Acquire);
                (entry != EMPTY).then_some((entry & ID_MASK) as BlockId)
            })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// An empty slot in the emptier of the two buckets.
    fn vacancy(&self, home: Home) -> Option<&AtomicU64> {
        let empty = |bucket: usize| {
            let slots = &self.buckets[bucket].0[..self.ways];
            let mut vacant = slots
                .iter()
                .filter(|slot| slot.load(Ordering::Relaxed) == EMPTY);
            let first = vacant.next();
            (first, usize::from(first.is_some()) + vacant.count())
        };
        let [(first, first_count), (second, second_count)] = home.buckets.map(empty);
        if first_count >= second_count {
            first
        } else {
            second
        }
    }

    fn slots(&self, home: Home) -> impl Iterator<Item = &AtomicU64> {
        let distinct = if home.buckets[0] == home.buckets[1] {
            1
        } else {
            2
        };
        let buckets = home.buckets.into_iter().take(distinct);
        buckets.flat_map(|bucket| &self.buckets[bucket].0[..self.ways])
    }

    /// Folds all words, so that the groups of one block (which differ in the last word) spread
    /// over different buckets, and mixes, so that keys need not be uniform to spread.
    fn home(&self, key: &BlockKey) -> Home {
        let [a, b, c, d] = key.0;
        let folded = mix(a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48));
        let bucket = |half: u64| ((half * self.buckets.len() as u64) >> 32) as usize;
        Home {
            buckets: [bucket(folded >> 32), bucket(folded & 0xFFFF_FFFF)],
            fingerprint: mix(folded) >> ID_BITS,
        }
    }
}

/// A bijection of 64-bit words in which every input bit affects every output bit: two rounds of
/// xor-shift and multiplication by an odd constant.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let word = (word ^ word >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    word ^ word >> 32
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn key(i: u64) -> BlockKey {
        BlockKey([i, 0, 0, 0])
    }

    fn found(index: &PrefixIndex, key: &BlockKey) -> Vec<BlockId> {
        index.candidates(key).collect()
    }

    #[test]
    fn ids_are_found_under_their_key_until_they_are_removed() {
        let index = PrefixIndex::new(2000, MAX_WAYS);
        let ids = 0..1000;
        assert!(ids.clone().all(|id| index.insert(&key(u64::from(id)), id)));
        for id in ids.clone() {
            assert_eq!(found(&index, &key(u64::from(id))), [id]);
        }
        ids.clone()
            .for_each(|id| index.remove(&key(u64::from(id)), id));
        assert_eq!(index.entered().count(), 0);
    }

    #[test]
    fn equal_entries_are_removed_one_at_a_time() {
        let index = PrefixIndex::new(16, MAX_WAYS);
        assert!(index.insert(&key(1), 5) && index.insert(&key(1), 5));
        index.remove(&key(1), 5);
        assert_eq!(found(&index, &key(1)), [5]);
    }

    #[test]
    fn with_two_slots_a_block_even_a_full_pool_overflows_almost_never() {
        let blocks = 1 << 16;
        let index = PrefixIndex::new(2 * blocks, MAX_WAYS);
        let full = (0..blocks)
            .filter(|id| !index.insert(&key(u64::from(*id)), *id))
            .count();
        assert_eq!(full, 0);
    }

    #[test]
    fn groups_of_one_block_do_not_crowd_one_bucket() {
        let index = PrefixIndex::new(64, MAX_WAYS);
        for key in [BlockKey([1, 2, 3, 4]), BlockKey([1, 2, 0, 0])] {
            assert!((0..20).all(|group| index.insert(&key.with_group(group), group)));
        }
    }

    #[test]
    fn mixing_is_a_bijection_that_spreads_neighbours() {
        let mut buckets = [0; 64];
        (0..6400).for_each(|i| buckets[(mix(i) >> 58) as usize] += 1);
        assert!(
            buckets.iter().all(|count| (50..200).contains(count)),
            "{buckets:?}"
        );
    }
}
