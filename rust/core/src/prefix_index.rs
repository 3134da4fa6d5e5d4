//! Where to look for the block that holds a key.
//!
//! A fixed table of 64-bit slots, each a 40-bit fingerprint over a block id, in buckets of one cache
//! line. A key belongs to two buckets and is entered into the first or the emptier one, so nothing is
//! displaced, resized or left as a tombstone, and a look-up reads at most two lines (INV-12).
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
pub(crate) struct Home {
    buckets: [u32; 2],
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

    /// Folds all words, so that the groups of one block (which differ in the last word) spread
    /// over different buckets, and mixes, so that keys need not be uniform to spread.
    pub(crate) fn home(&self, key: &BlockKey) -> Home {
        let [a, b, c, d] = key.0;
        let folded = mix(a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48));
        let count = self.buckets.len() as u32;
        let bucket = |half: u32| ((u64::from(half) * u64::from(count)) >> 32) as u32;
        let first = bucket((folded >> 32) as u32);
        let second = bucket(folded as u32);
        let next = if first + 1 < count { first + 1 } else { 0 };
        Home {
            buckets: [first, if second == first { next } else { second }],
            fingerprint: mix(folded) >> ID_BITS,
        }
    }

    /// Enters `id`; false if both buckets are full.
    pub(crate) fn insert(&self, home: Home, id: BlockId) -> bool {
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

    /// Removes one entry of `id`. Called exactly once per [`insert`](Self::insert), by whoever
    /// ended the block's hashed state. Relaxed: a removal publishes nothing.
    pub(crate) fn remove(&self, home: Home, id: BlockId) {
        let entry = home.entry(id);
        for bucket in home.buckets {
            for slot in self.bucket(bucket) {
                let removed = slot.load(Ordering::Relaxed) == entry
                    && slot
                        .compare_exchange(entry, EMPTY, Ordering::Relaxed, Ordering::Relaxed)
                        .is_ok();
                if removed {
                    return;
                }
            }
        }
    }

    /// Asks about each block that may hold the key until there is an answer.
    #[inline]
    pub(crate) fn find<T>(
        &self,
        home: Home,
        mut ask: impl FnMut(BlockId) -> Option<T>,
    ) -> Option<T> {
        for bucket in home.buckets {
            for slot in self.bucket(bucket) {
                let entry = slot.load(Ordering::Acquire);
                if entry >> ID_BITS == home.fingerprint && entry != EMPTY {
                    let answer = ask((entry & ID_MASK) as BlockId);
                    if answer.is_some() {
                        return answer;
                    }
                }
            }
        }
        None
    }

    /// The ids of all entries, in table order.
    pub(crate) fn entered(&self) -> impl Iterator<Item = BlockId> + '_ {
        let slots = (0..self.buckets.len() as u32).flat_map(|bucket| self.bucket(bucket));
        slots.filter_map(|slot| {
            let entry = slot.load(Ordering::Acquire);
            (entry != EMPTY).then_some((entry & ID_MASK) as BlockId)
        })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// An empty slot: in the first bucket while half of it is empty, so that most look-ups end
    /// there, and otherwise in the emptier one.
    fn vacancy(&self, home: Home) -> Option<&AtomicU64> {
        let vacant = |bucket: u32| {
            let mut empty = self
                .bucket(bucket)
                .iter()
                .filter(|slot| slot.load(Ordering::Relaxed) == EMPTY);
            let first = empty.next();
            (first, usize::from(first.is_some()) + empty.count())
        };
        let (first, first_count) = vacant(home.buckets[0]);
        if 2 * first_count >= self.ways {
            return first;
        }
        let (second, second_count) = vacant(home.buckets[1]);
        if first_count >= second_count {
            first
        } else {
            second
        }
    }

    fn bucket(&self, bucket: u32) -> &[AtomicU64] {
        &self.buckets[bucket as usize].0[..self.ways]
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
        let mut ids = vec![];
        index.find(index.home(key), |id| {
            ids.push(id);
            None::<()>
        });
        ids
    }

    fn insert(index: &PrefixIndex, key: &BlockKey, id: BlockId) -> bool {
        index.insert(index.home(key), id)
    }

    #[test]
    fn ids_are_found_under_their_key_until_they_are_removed() {
        let index = PrefixIndex::new(2000, MAX_WAYS);
        let ids = 0..1000;
        assert!(
            ids.clone()
                .all(|id| insert(&index, &key(u64::from(id)), id))
        );
        for id in ids.clone() {
            assert_eq!(found(&index, &key(u64::from(id))), [id]);
        }
        ids.clone()
            .for_each(|id| index.remove(index.home(&key(u64::from(id))), id));
        assert_eq!(index.entered().count(), 0);
    }

    #[test]
    fn equal_entries_are_removed_one_at_a_time() {
        let index = PrefixIndex::new(16, MAX_WAYS);
        assert!(insert(&index, &key(1), 5) && insert(&index, &key(1), 5));
        index.remove(index.home(&key(1)), 5);
        assert_eq!(found(&index, &key(1)), [5]);
    }

    #[test]
    fn with_two_slots_a_block_even_a_full_pool_overflows_almost_never() {
        let blocks = 1 << 16;
        let index = PrefixIndex::new(2 * blocks, MAX_WAYS);
        let full = (0..blocks)
            .filter(|id| !insert(&index, &key(u64::from(*id)), *id))
            .count();
        assert_eq!(full, 0);
    }

    #[test]
    fn groups_of_one_block_do_not_crowd_one_bucket() {
        let index = PrefixIndex::new(64, MAX_WAYS);
        for key in [BlockKey([1, 2, 3, 4]), BlockKey([1, 2, 0, 0])] {
            assert!((0..20).all(|group| insert(&index, &key.with_group(group), group)));
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
