//! The row slots of the step buffers, and who has them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::manager_error::ManagerError;
use crate::sequence::SeqHandle;

/// `max_num_seqs` slots; the lowest free one is given out first, so that steps stay short.
#[derive(Debug)]
pub(crate) struct RowSlots {
    owners: Vec<Option<SeqHandle>>,
    /// A number that no earlier tenant of any slot had; 0 while the slot is vacant.
    tenancies: Vec<u64>,
    last_tenancy: u64,
    vacant: BinaryHeap<Reverse<u32>>,
}

impl RowSlots {
    pub(crate) fn new(max_num_seqs: u32) -> Self {
        Self {
            owners: vec![None; max_num_seqs as usize],
            tenancies: vec![0; max_num_seqs as usize],
            last_tenancy: 0,
            vacant: (0..max_num_seqs).map(Reverse).collect(),
        }
    }

    /// Checks that `asked` slots can be taken.
    pub(crate) fn check_free(&self, asked: u32) -> Result<(), ManagerError> {
        let free = self.vacant.len() as u32;
        if asked <= free {
            return Ok(());
        }
        Err(ManagerError::NoFreeRow {
            asked,
            free,
            max_num_seqs: self.owners.len() as u32,
        })
    }

    pub(crate) fn take(&mut self, owner: SeqHandle) -> Result<u32, ManagerError> {
        self.check_free(1)?;
        let Reverse(slot) = self.vacant.pop().expect("checked to be free");
        self.last_tenancy += 1;
        self.owners[slot as usize] = Some(owner);
        self.tenancies[slot as usize] = self.last_tenancy;
        Ok(slot)
    }

    pub(crate) fn vacate(&mut self, slot: u32) {
        debug_assert!(self.owners[slot as usize].is_some());
        self.owners[slot as usize] = None;
        self.tenancies[slot as usize] = 0;
        self.vacant.push(Reverse(slot));
    }

    pub(crate) fn owner(&self, slot: u32) -> Option<SeqHandle> {
        self.owners[slot as usize]
    }

    pub(crate) fn tenancies(&self) -> &[u64] {
        &self.tenancies
    }

    pub(crate) fn num_taken(&self) -> usize {
        self.owners.len() - self.vacant.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_slot_is_given_out_first() {
        let mut rows = RowSlots::new(3);
        let owner = SeqHandle::from_raw(7);
        assert_eq!(
            [rows.take(owner), rows.take(owner), rows.take(owner)],
            [Ok(0), Ok(1), Ok(2)]
        );
        assert_eq!(
            rows.take(owner),
            Err(ManagerError::NoFreeRow {
                asked: 1,
                free: 0,
                max_num_seqs: 3
            })
        );
        rows.vacate(2);
        rows.vacate(0);
        assert_eq!(rows.take(owner), Ok(0));
        assert_eq!((rows.owner(0), rows.owner(2)), (Some(owner), None));
    }
}
