//! Does one call name a block twice?

use crate::BlockId;
use crate::sync::{AtomicU32, Ordering};

/// Up to this many ids, comparing all pairs is cheaper than touching shared memory.
const PAIRWISE_UP_TO: usize = 8;

/// Exact, in linear time and without allocating: every id of the call gets a mark that no other
/// call uses, and afterwards must still carry it.
#[derive(Debug)]
pub(crate) struct DistinctCheck {
    marks: Box<[AtomicU32]>,
    next_mark: AtomicU32,
}

impl DistinctCheck {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            marks: (0..num_blocks).map(|_| AtomicU32::new(0)).collect(),
            next_mark: AtomicU32::new(0),
        }
    }

    /// The first id that occurs again, if one does. All ids must be the pool's.
    pub(crate) fn find_duplicate(&self, ids: &[BlockId]) -> Option<BlockId> {
        // A table that was filled in one go is in order, forwards or backwards.
        if ids.is_sorted_by(|a, b| a < b) || ids.is_sorted_by(|a, b| a > b) {
            None
        } else if ids.len() <= PAIRWISE_UP_TO {
            (0..ids.len())
                .find(|i| occurs_again(ids, *i))
                .map(|i| ids[i])
        } else {
            self.find_by_marks(ids)
        }
    }

    fn find_by_marks(&self, ids: &[BlockId]) -> Option<BlockId> {
        // Relaxed everywhere: of one mark's history a thread never sees anything older than what
        // it wrote itself, so of two equal ids the earlier one finds its mark replaced.
        let first = self
            .next_mark
            .fetch_add(ids.len() as u32, Ordering::Relaxed);
        let mark_of = |i: usize| first.wrapping_add(i as u32);
        for (i, id) in ids.iter().enumerate() {
            self.marks[*id as usize].store(mark_of(i), Ordering::Relaxed);
        }
        // A mark may also have been replaced by a call on another thread that shares the block, so
        // a foreign mark is only a reason to look.
        (0..ids.len())
            .filter(|i| self.marks[ids[*i] as usize].load(Ordering::Relaxed) != mark_of(*i))
            .find(|i| occurs_again(ids, *i))
            .map(|i| ids[i])
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.marks)
    }
}

fn occurs_again(ids: &[BlockId], i: usize) -> bool {
    ids[i + 1..].contains(&ids[i])
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_id_that_occurs_again_is_found(
            ids in prop::collection::vec(0..40_u32, 0..30),
            first_mark: u32,
        ) {
            let check = DistinctCheck::new(40);
            check.next_mark.store(first_mark, Ordering::Relaxed);
            let expected = (0..ids.len()).find(|i| ids[i + 1..].contains(&ids[*i])).map(|i| ids[i]);
            prop_assert_eq!(check.find_duplicate(&ids), expected);
            prop_assert_eq!(check.find_by_marks(&ids), expected);
        }
    }
}
