//! The end of a step: lengths advance, filled blocks are published, waiting frees take place.

use super::KVCacheManager;
use super::step_end::publish_block;
use crate::BlockContent;
use crate::manager_error::ManagerError;
use crate::sequence::{FinishReason, SeqHandle};
use crate::step::{RowState, StepRow};

/// A sequence that a step completed. It keeps its row and its blocks until it is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinishedRow {
    /// The sequence.
    pub handle: SeqHandle,
    /// Its row slot.
    pub row: u32,
    /// Why it is complete.
    pub reason: FinishReason,
}

impl KVCacheManager {
    /// Commits the oldest step in flight: `sampled[i]` is the token sampled for the step's i-th
    /// sampling row. Blocks that are full and written become hit-able, and what was given up while
    /// the step ran becomes free. Samples of sequences that were closed or preempted meanwhile are
    /// ignored. Returns the sequences that the step completed, in the order of their rows.
    ///
    /// # Errors
    /// [`ManagerError::UnknownStep`], [`ManagerError::SampleCount`],
    /// [`ManagerError::InvalidToken`], and [`ManagerError::DraftsNeedCommit`] for rows with drafts
    /// that were not committed on their own yet. Nothing has changed then.
    pub fn commit_step(
        &mut self,
        step: u64,
        sampled: &[i32],
    ) -> Result<&[FinishedRow], ManagerError> {
        self.check_samples(step, sampled)?;
        self.scratch.finished.clear();
        let mut samples = sampled.iter();
        for slot in 0..self.steps.in_flight()[0].num_slots() as u32 {
            let Some(&row) = self.steps.in_flight()[0].row(slot) else {
                continue;
            };
            let sample = if row.at_tip { samples.next() } else { None };
            if row.state == RowState::Live {
                let token = sample.map(|&token| token as u32);
                if let Some(reason) = self.commit_row(0, slot, &row, token.as_slice())? {
                    let finished = FinishedRow {
                        handle: row.handle,
                        row: slot,
                        reason,
                    };
                    self.scratch.finished.push(finished);
                }
            }
        }
        self.end_step(0)?;
        self.end_idle_steps()?;
        Ok(&self.scratch.finished)
    }

    /// Commits the oldest uncommitted append of one sequence: for callers that run steps without
    /// [`prepare`](Self::prepare), and for rows with drafts. If the append is in the open step, that
    /// step counts as run, a new one opens, and the step is over once all its rows are committed. A
    /// prepared step is over with [`commit_step`](Self::commit_step) only.
    ///
    /// `accepted` are the tokens that follow the known ones: the drafts that were right, then one
    /// that was sampled. Without any, the known tokens count as computed and no token is added. An
    /// append that did not reach the end of the known tokens takes none. Says whether the sequence
    /// is now complete; tokens after the one that completes it are dropped.
    ///
    /// # Errors
    /// [`ManagerError::NothingToCommit`], [`ManagerError::AcceptedCount`],
    /// [`ManagerError::AcceptedMismatch`] and, while an older prepared step is in flight,
    /// [`ManagerError::UnknownStep`]. Nothing has changed then.
    pub fn commit(
        &mut self,
        handle: SeqHandle,
        accepted: &[u32],
    ) -> Result<Option<FinishReason>, ManagerError> {
        let slot = self.admitted(handle)?.1;
        let (id, row) = self.check_accepted(handle, slot, accepted)?;
        let position = self.steps.position(id).unwrap_or_else(|| {
            let position = self.steps.seal();
            self.steps.at_mut(position).has_run = true;
            position
        });
        let reason = self.commit_row(position, slot, &row, accepted)?;
        self.end_announcements(position, handle);
        self.end_idle_steps()?;
        Ok(reason)
    }

    /// The oldest uncommitted append and its step, if it can take these tokens.
    fn check_accepted(
        &self,
        handle: SeqHandle,
        slot: u32,
        accepted: &[u32],
    ) -> Result<(u64, StepRow), ManagerError> {
        let live = self.steps.all().filter(|step| step.is_live(slot, handle));
        let mut appends = live.filter_map(|step| Some((step, *step.row(slot)?)));
        let Some((step, row)) = appends.next() else {
            return Err(ManagerError::NothingToCommit {
                handle: handle.raw(),
            });
        };
        // Should an older prepared step fail, what this row computed may have relied on it.
        if self
            .steps
            .in_flight()
            .iter()
            .any(|older| older.id < step.id && !older.has_run)
        {
            return Err(self.steps.unknown(step.id));
        }
        let at_most = if row.at_tip { row.drafts + 1 } else { 0 };
        // A later append computes the token that this one is to bring.
        let at_least = u32::from(row.at_tip && appends.next().is_some());
        let found = accepted.len() as u32;
        if !(at_least..=at_most).contains(&found) {
            return Err(ManagerError::AcceptedCount {
                found,
                at_least,
                at_most,
            });
        }
        // All but the last must be what was run; the last is what came out.
        let run = &accepted[..accepted.len().saturating_sub(1)];
        for (position, &accepted) in (row.known_end()..).zip(run) {
            match step.draft(&row, position as usize) {
                Some(drafted) if drafted != accepted => {
                    return Err(ManagerError::AcceptedMismatch {
                        position,
                        drafted,
                        accepted,
                    });
                }
                _ => {}
            }
        }
        Ok((step.id, row))
    }

    fn check_samples(&self, step: u64, sampled: &[i32]) -> Result<(), ManagerError> {
        let oldest = self
            .steps
            .in_flight()
            .front()
            .filter(|oldest| oldest.id == step);
        let Some(oldest) = oldest else {
            return Err(self.steps.unknown(step));
        };
        if sampled.len() != oldest.sample_rows.len() {
            let (found, expected) = (sampled.len() as u32, oldest.sample_rows.len() as u32);
            return Err(ManagerError::SampleCount { found, expected });
        }
        for (&slot, &token) in oldest.sample_rows.iter().zip(sampled) {
            let Some(row) = oldest.row(slot).filter(|row| row.state == RowState::Live) else {
                continue;
            };
            if row.drafts > 0 {
                return Err(ManagerError::DraftsNeedCommit {
                    handle: row.handle.raw(),
                });
            }
            if token < 0 {
                return Err(ManagerError::InvalidToken {
                    row: slot,
                    found: token,
                });
            }
        }
        Ok(())
    }

    /// Advances one live row of a step in flight.
    fn commit_row(
        &mut self,
        position: usize,
        slot: u32,
        row: &StepRow,
        accepted: &[u32],
    ) -> Result<Option<FinishReason>, ManagerError> {
        self.steps
            .at_mut(position)
            .settle(slot, RowState::Committed);
        let sequence = self.sequences.get_mut(row.handle)?;
        if !row.at_tip {
            sequence.computed = row.start + row.len;
        } else {
            for &token in accepted {
                if sequence.push_token(token).is_some() {
                    break;
                }
            }
            // Drafts that were right are computed; what was sampled last is not.
            let right = (accepted.len() as u32).saturating_sub(1);
            sequence.computed = (row.known_end() + right).min(sequence.len());
            if row.drafts == 0 {
                sequence.pending -= 1;
            } else {
                sequence.uncertain = false;
                sequence.scheduled = sequence.computed;
            }
        }
        self.publish_full(row.handle)?;
        let finished = self.sequences.get(row.handle)?.finished;
        if finished.is_some() {
            self.drop_later_rows(row.handle, slot)?;
        }
        Ok(finished)
    }

    /// Makes the sequence's full and computed blocks hit-able.
    pub(super) fn publish_full(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        let verifies = self.verifies();
        let Some(hasher) = &self.hasher else {
            return Ok(());
        };
        let sequence = self.sequences.get_mut(handle)?;
        let full = sequence.computed / self.block_size;
        if full <= sequence.settled {
            return Ok(());
        }
        let first = std::mem::replace(&mut sequence.settled, full) as usize;
        sequence
            .chain
            .extend_to(full as usize, &sequence.tokens, self.block_size, hasher);
        for index in first..full as usize {
            for group in 0..sequence.table.num_groups() {
                // Never taken for a first block, whatever else may be wrong.
                let before = sequence.name_before(index, group);
                let before = before.unwrap_or_else(|| self.pool.fresh_name());
                let wanted = sequence.wanted(index, group, before, self.block_size);
                let content = BlockContent {
                    parent: sequence.chain.parent_of(index),
                    tokens: wanted.tokens,
                    group: group as u32,
                    after: Some(wanted.after),
                };
                let block = sequence.table.ids(group)[index];
                let key = &sequence.chain.keys()[index];
                let name = sequence.name_of(index, group);
                let name = publish_block(&self.pool, block, key, &content, name)?;
                if verifies {
                    sequence.set_name(index, group, name);
                }
            }
        }
        Ok(())
    }
}
