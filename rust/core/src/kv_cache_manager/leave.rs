//! How sequences give up their blocks: preempted, closed, or because a step failed; and what that
//! means for those who counted on what they were about to write.

use super::KVCacheManager;
use crate::manager_error::ManagerError;
use crate::sequence::SeqHandle;
use crate::step::{Announcement, RowState, StepRow};

impl KVCacheManager {
    /// Takes the sequence's row and all its blocks, leaves before roots; its tokens stay, so that it
    /// can be admitted again. It is taken out of the open step. Blocks that a step in flight may
    /// touch become free when that step is over, and what it samples for the sequence is ignored.
    /// Blocks that are being filled from outside become free with
    /// [`finish_load`](Self::finish_load).
    ///
    /// Returns the sequences that were preempted with it, because they had been admitted onto
    /// blocks that the sequence was to fill in the open step.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`] and [`ManagerError::NotAdmitted`].
    pub fn preempt(&mut self, handle: SeqHandle) -> Result<&[SeqHandle], ManagerError> {
        self.admitted(handle)?;
        self.scratch.affected.clear();
        self.evict(handle, Trust::InFlight)?;
        self.count_preemption(handle)?;
        self.evict_dependants(Trust::InFlight)?;
        self.end_idle_steps()?;
        Ok(&self.scratch.affected)
    }

    /// Ends a sequence in whatever state it is. Its blocks become free, leaves before roots; those
    /// that a step in flight may touch, when that step is over, and those that are being filled from
    /// outside, with [`finish_load`](Self::finish_load), the only call that still takes the handle.
    ///
    /// Returns the sequences that were preempted, as for [`preempt`](Self::preempt).
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`], also for a second close.
    pub fn close(&mut self, handle: SeqHandle) -> Result<&[SeqHandle], ManagerError> {
        let row = self.sequences.get(handle)?.row;
        self.scratch.affected.clear();
        if row.is_some() {
            self.evict(handle, Trust::InFlight)?;
        }
        self.sequences.remove(handle);
        self.evict_dependants(Trust::InFlight)?;
        self.end_idle_steps()?;
        Ok(&self.scratch.affected)
    }

    /// Takes back a step in flight that did not run to its end. Its rows go back to what they had
    /// computed before it, keep their blocks and can be scheduled again; a row that the step was to
    /// give a copied block goes back to that block's beginning. What later steps compute for them is
    /// ignored. Sequences that were admitted onto blocks which the step was to fill are preempted.
    ///
    /// Returns all of these sequences; the preempted ones have no row any more.
    ///
    /// # Errors
    /// [`ManagerError::UnknownStep`].
    pub fn fail_step(&mut self, step: u64) -> Result<&[SeqHandle], ManagerError> {
        let Some(position) = self.steps.position(step) else {
            return Err(self.steps.unknown(step));
        };
        self.scratch.affected.clear();
        for slot in 0..self.steps.in_flight()[position].num_slots() as u32 {
            let row = self.steps.in_flight()[position].row(slot).copied();
            if let Some(row) = row.filter(|row| row.state == RowState::Live) {
                self.scratch.affected.push(row.handle);
                self.roll_back(position, slot, &row)?;
            }
        }
        // Also those of sequences that have left since: nobody knows any more whether what they
        // computed in later steps relied on this one.
        for later in position..self.steps.in_flight().len() {
            let id = self.steps.in_flight()[later].id;
            self.withdraw(id, |_, row| {
                row.is_some_and(|row| row.state == RowState::Dropped)
            });
        }
        self.evict_dependants(Trust::Nothing)?;
        self.end_step(position)?;
        self.end_idle_steps()?;
        Ok(&self.scratch.affected)
    }

    /// Undoes a live row of a step in flight and what later steps build on it.
    fn roll_back(&mut self, position: usize, slot: u32, row: &StepRow) -> Result<(), ManagerError> {
        self.unschedule(slot);
        // Later steps give it no copies: they were scheduled while this one wrote for it.
        let copied = self.steps.in_flight()[position].first_copied(slot);
        for later in position..self.steps.in_flight().len() {
            let step = self.steps.at_mut(later);
            if step.is_live(slot, row.handle) {
                step.settle(slot, RowState::Dropped);
            }
        }
        let earlier = self.steps.in_flight().iter().take(position);
        let pending = earlier
            .filter_map(|step| step.row_of(slot, row.handle))
            .filter(|row| row.state == RowState::Live && row.at_tip)
            .count() as u32;
        let block_size = self.block_size;
        let sequence = self.sequences.get_mut(row.handle)?;
        let valid = copied.map_or(row.start, |index| row.start.min(index * block_size));
        sequence.computed = sequence.computed.min(valid);
        sequence.scheduled = valid;
        sequence.pending = pending;
        sequence.uncertain = false;
        Ok(())
    }

    /// Takes the sequence's row and blocks.
    fn evict(&mut self, handle: SeqHandle, trust: Trust) -> Result<(), ManagerError> {
        let slot = self.admitted(handle)?.1;
        self.unschedule(slot);
        for position in 0..self.steps.in_flight().len() {
            let step = self.steps.at_mut(position);
            if !step.is_live(slot, handle) {
                continue;
            }
            step.settle(slot, RowState::Dropped);
            let (id, has_run) = (step.id, step.has_run);
            if trust == Trust::Nothing {
                self.withdraw(id, |announcement, _| announcement.owner == handle);
                continue;
            }
            if self.pool.config().event_capacity != 0 {
                let tokens = &self.sequences.get(handle)?.tokens;
                step.keep_tokens(handle, tokens, self.block_size);
            }
            if has_run {
                // Such steps may end in any order, so its blocks may be free before this one ends.
                self.publish_announced(position, handle)?;
            }
        }
        self.abandon_load(handle)?;
        let ids = &mut self.scratch.ids;
        ids.clear();
        let sequence = self.sequences.get_mut(handle)?;
        sequence.table.truncate_into(0, ids);
        sequence.row = None;
        sequence.computed = 0;
        sequence.settled = 0;
        sequence.forget_appends();
        self.rows.vacate(slot);
        self.running.retain(|&other| other != handle);
        match self.steps.newest_holding(slot, handle) {
            Some(step) => step.frees.push(ids),
            None => self.returns.release(ids, &mut self.steps)?,
        }
        Ok(())
    }

    /// Preempts everybody who was admitted onto a withdrawn announcement, and whoever relied on
    /// them in turn.
    fn evict_dependants(&mut self, trust: Trust) -> Result<(), ManagerError> {
        while let Some(lost) = self.scratch.lost.pop() {
            while let Some(handle) = self.dependant_on(&lost) {
                self.evict(handle, trust)?;
                self.count_preemption(handle)?;
                if !self.scratch.affected.contains(&handle) {
                    self.scratch.affected.push(handle);
                }
            }
        }
        Ok(())
    }

    /// Somebody whose table has the block at the place for which it was announced. Its owner has it
    /// there as well if it was rolled back; an owner that left and came back took it as a hit.
    fn dependant_on(&self, lost: &Announcement) -> Option<SeqHandle> {
        let relies = |handle: SeqHandle| {
            self.sequences.get(handle).is_ok_and(|sequence| {
                let ids = sequence.table.ids(lost.group as usize);
                ids.get(lost.index as usize) == Some(&lost.block)
            })
        };
        let owns = |handle| handle == lost.owner && self.scratch.affected.contains(&handle);
        let mut dependants = self.steps.all().flat_map(|step| &step.dependants).copied();
        dependants.find(|&handle| !owns(handle) && relies(handle))
    }

    fn count_preemption(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        self.sequences.get_mut(handle)?.preemptions += 1;
        self.stats.preemptions += 1;
        Ok(())
    }
}

/// What to make of the steps in flight in which a sequence that leaves has a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// They run as planned and fill what was announced.
    InFlight,
    /// They read what is not there.
    Nothing,
}
