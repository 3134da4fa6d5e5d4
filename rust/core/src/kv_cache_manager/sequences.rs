//! The open sequences by handle.

use crate::manager_error::ManagerError;
use crate::sequence::{SeqHandle, Sequence};
use crate::sync::Serial;

/// How many managers there were before, so that the handles of one mean nothing to another.
static MANAGERS: Serial = Serial::new();

/// A slot is used so often before its handles could be taken for those of a later manager.
const GENERATIONS_BITS: u32 = 20;

#[derive(Debug)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

/// A slab whose handles go stale when their sequence is removed.
#[derive(Debug)]
pub(crate) struct Sequences {
    first_generation: u32,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Default for Sequences {
    fn default() -> Self {
        Self {
            // From 1, so that no handle is 0: callers may test handles for truth.
            first_generation: (MANAGERS.next() << GENERATIONS_BITS | 1) as u32,
            slots: Vec::new(),
            vacant: Vec::new(),
        }
    }
}

impl Sequences {
    pub(crate) fn insert(&mut self, sequence: Sequence) -> SeqHandle {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: self.first_generation,
                sequence: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.sequence = Some(sequence);
        SeqHandle::new(index, slot.generation)
    }

    pub(crate) fn remove(&mut self, handle: SeqHandle) -> Option<Sequence> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        if slot.generation != handle.generation() {
            return None;
        }
        let sequence = slot.sequence.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.vacant.push(handle.index());
        Some(sequence)
    }

    pub(crate) fn get(&self, handle: SeqHandle) -> Result<&Sequence, ManagerError> {
        self.slots
            .get(handle.index() as usize)
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.sequence.as_ref())
            .ok_or(ManagerError::UnknownHandle {
                handle: handle.raw(),
            })
    }

    pub(crate) fn get_mut(&mut self, handle: SeqHandle) -> Result<&mut Sequence, ManagerError> {
        self.slots
            .get_mut(handle.index() as usize)
            .filter(|slot| slot.generation == handle.generation())
            .and_then(|slot| slot.sequence.as_mut())
            .ok_or(ManagerError::UnknownHandle {
                handle: handle.raw(),
            })
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqHandle, &Sequence)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            Some((
                SeqHandle::new(index, slot.generation),
                slot.sequence.as_ref()?,
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_table::BlockTable;
    use crate::hash_chain::HashChain;
    use crate::sequence::StopRules;

    fn sequence() -> Sequence {
        let stop = StopRules {
            eos_token_ids: Box::default(),
            stop_token_ids: Box::default(),
            min_tokens: 0,
            max_tokens: 1,
            max_model_len: 8,
        };
        Sequence::new(vec![1], stop, HashChain::new(None, &[]), BlockTable::new(1))
    }

    #[test]
    fn a_handle_goes_stale_when_its_sequence_is_removed_and_its_place_reused() {
        let mut sequences = Sequences::default();
        let first = sequences.insert(sequence());
        assert_ne!(first.raw(), 0);
        assert!(sequences.remove(first).is_some());
        let second = sequences.insert(sequence());
        assert_eq!(first.index(), second.index());
        assert!(sequences.get(first).is_err());
        assert!(sequences.get_mut(first).is_err());
        assert!(sequences.remove(first).is_none());
        assert!(sequences.get(second).is_ok());
        assert_eq!(sequences.len(), 1);
    }
}
