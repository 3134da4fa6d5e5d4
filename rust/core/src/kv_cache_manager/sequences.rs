//! The open sequences by handle.

use crate::manager_error::ManagerError;
use crate::sequence::{SeqHandle, Sequence};

#[derive(Debug)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

/// A slab whose handles go stale when their sequence is removed.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Sequences {
    pub(crate) fn insert(&mut self, sequence: Sequence) -> SeqHandle {
        let index = self.vacant.pop().unwrap_or_else(|| {
            // From 1, so that no handle is 0: callers may test handles for truth.
            self.slots.push(Slot {
                generation: 1,
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
