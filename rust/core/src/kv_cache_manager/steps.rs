//! The step being filled and the steps in flight, oldest first.

use std::collections::VecDeque;

use crate::BlockId;
use crate::manager_error::ManagerError;
use crate::sequence::SeqHandle;
use crate::step::{Step, StepShape};

/// All uncommitted steps. Numbers grow from 1.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) open: Step,
    in_flight: VecDeque<Step>,
    spare: Vec<Step>,
    shape: StepShape,
}

impl Steps {
    pub(crate) fn new(shape: StepShape, max_steps_in_flight: u8) -> Self {
        let mut open = Step::new(shape);
        open.reset(1);
        let spare = (0..max_steps_in_flight).map(|_| Step::new(shape)).collect();
        Self {
            open,
            in_flight: VecDeque::with_capacity(max_steps_in_flight.into()),
            spare,
            shape,
        }
    }

    pub(crate) fn in_flight(&self) -> &VecDeque<Step> {
        &self.in_flight
    }

    /// The newest of the older steps that may not have run yet.
    pub(crate) fn newest_running_before(&mut self, position: usize) -> Option<&mut Step> {
        self.in_flight
            .range_mut(..position)
            .rev()
            .find(|step| !step.has_run)
    }

    pub(crate) fn at_mut(&mut self, position: usize) -> &mut Step {
        &mut self.in_flight[position]
    }

    /// Every uncommitted step, the open one last.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Step> {
        self.in_flight.iter().chain(std::iter::once(&self.open))
    }

    /// Every uncommitted step, the open one last.
    pub(crate) fn all_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Step> {
        self.in_flight
            .iter_mut()
            .chain(std::iter::once(&mut self.open))
    }

    pub(crate) fn position(&self, id: u64) -> Option<usize> {
        self.in_flight.iter().position(|step| step.id == id)
    }

    /// The refusal of a step that is not where the caller thinks it is.
    pub(crate) fn unknown(&self, step: u64) -> ManagerError {
        ManagerError::UnknownStep {
            step,
            oldest: self.in_flight.front().map(|oldest| oldest.id),
        }
    }

    /// Puts the open step in flight, at the end, and opens the next.
    pub(crate) fn seal(&mut self) -> usize {
        let mut next = self.spare.pop().unwrap_or_else(|| Step::new(self.shape));
        next.reset(self.open.id + 1);
        let mut sealed = std::mem::replace(&mut self.open, next);
        sealed.list_sample_rows();
        self.in_flight.push_back(sealed);
        self.in_flight.len() - 1
    }

    /// Takes a step out of flight. Give it back with [`recycle`](Self::recycle).
    pub(crate) fn take(&mut self, position: usize) -> Option<Step> {
        self.in_flight.remove(position)
    }

    pub(crate) fn recycle(&mut self, step: Step) {
        self.spare.push(step);
    }

    /// Whether a step in flight computes for the sequence, with a result that is wanted.
    pub(crate) fn writes_in_flight(&self, slot: u32, handle: SeqHandle) -> bool {
        self.in_flight.iter().any(|step| step.is_live(slot, handle))
    }

    /// The newest step in flight that may still touch the sequence's blocks.
    pub(crate) fn newest_holding(&mut self, slot: u32, handle: SeqHandle) -> Option<&mut Step> {
        self.in_flight
            .iter_mut()
            .rev()
            .find(|step| step.holds(slot, handle))
    }

    /// The newest uncommitted step, the open one included, that holds the sequence's blocks.
    pub(crate) fn newest_with(&self, slot: u32, handle: SeqHandle) -> Option<u64> {
        self.all()
            .rev()
            .find(|step| step.holds(slot, handle))
            .map(|step| step.id)
    }

    /// The newest uncommitted step that copies from the block.
    pub(crate) fn newest_copying(&mut self, block: BlockId) -> Option<&mut Step> {
        self.all_mut()
            .rev()
            .find(|step| step.copies.iter().any(|copy| copy.source == block))
    }
}
