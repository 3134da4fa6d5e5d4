//! Sequences that leave the device, and steps that fail.

use looseleaf::{ManagerError, SeqHandle};

use super::Engine;
use super::launch::Launch;

impl Engine {
    /// Gives up one of the steps in flight; the device may have done any part of it.
    pub fn fail(&mut self, nth: usize) -> Result<(), ManagerError> {
        let failed = self.launches.remove(nth).expect("a step is in flight");
        self.spoil(&failed);
        self.coverage.failed_steps += 1;
        let affected = self.manager.fail_step(failed.step)?.to_vec();
        for later in self
            .launches
            .iter_mut()
            .filter(|later| later.step > failed.step)
        {
            for row in &mut later.rows {
                // Who knows what rows read that nobody wants any more.
                row.poisoned |= !row.wanted || affected.contains(&row.handle);
                self.coverage.poisoned_rows += u64::from(row.poisoned);
            }
        }
        for handle in affected {
            let evicted = self.manager.row(handle)?.is_none();
            self.coverage.evicted_with_others += u64::from(evicted);
            self.forget(handle, if evicted { 0 } else { failed.step });
        }
        Ok(())
    }

    /// Leaves what a device may leave that stopped at any point of the step, under what later steps
    /// have written since.
    fn spoil(&mut self, failed: &Launch) {
        let mut memory = self.memory.lock().expect("nobody panicked");
        let mut spoilt = failed.writes(&memory);
        let later = self
            .launches
            .iter()
            .filter(|later| later.step > failed.step);
        for later in later.filter(|later| later.executed) {
            spoilt = &spoilt - &later.writes(&memory);
        }
        spoilt
            .into_iter()
            .for_each(|(group, slot)| memory.write(group, slot, None));
    }

    /// The sequence's rows and samples of this step and later ones are not wanted.
    pub(super) fn forget(&mut self, handle: SeqHandle, step: u64) {
        let mirror = self.mirrors.get_mut(&handle).expect("it was opened");
        mirror.sampled.retain(|&(sampled, _)| sampled < step);
        let launches = self
            .launches
            .iter_mut()
            .filter(|launch| launch.step >= step);
        for row in launches.flat_map(|launch| &mut launch.rows) {
            row.wanted &= row.handle != handle;
        }
        self.drafts.remove(&handle);
    }

    pub fn preempt(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        let others = self.manager.preempt(handle)?.to_vec();
        self.left(handle, &others);
        Ok(())
    }

    pub fn close(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        let others = self.manager.close(handle)?.to_vec();
        self.left(handle, &others);
        Ok(())
    }

    fn left(&mut self, handle: SeqHandle, others: &[SeqHandle]) {
        self.coverage.evicted_with_others += others.len() as u64;
        self.forget(handle, 0);
        others.iter().for_each(|&other| self.forget(other, 0));
    }
}
