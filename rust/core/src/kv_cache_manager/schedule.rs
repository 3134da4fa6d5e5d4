//! Filling the open step: slots for the next tokens of a sequence, and of all running ones.

use std::collections::hash_map::Entry;

use super::admission::out_of_blocks;
use super::{Announced, KVCacheManager, Scratch};
use crate::BlockId;
use crate::manager_error::ManagerError;
use crate::sequence::SeqHandle;
use crate::step::{Announcement, BlockCopy, RowState, StepRow};

/// A running sequence that could not grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The sequence.
    pub handle: SeqHandle,
    /// Blocks that must become free before it can.
    pub missing: u32,
    /// It needs more blocks than the pool has, so no preemption of others can help.
    pub can_never_fit: bool,
}

/// What [`KVCacheManager::schedule_running`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunningOutcome {
    /// Tokens it scheduled in this call.
    pub num_tokens_scheduled: u32,
    /// The sequence at which it stopped, if blocks ran out.
    pub blocked: Option<Blocked>,
}

impl KVCacheManager {
    /// Schedules the next `k` tokens of a sequence in the open step: blocks are added, a block that
    /// others share is replaced by a copy ([`copies`](Self::copies)), and blocks that the step will
    /// fill are announced to later admissions of this manager.
    ///
    /// Tokens beyond the known ones are drafts, to be accepted or rejected by
    /// [`commit`](Self::commit); `draft_tokens` gives their ids, or is empty if only the caller
    /// knows them. A token that a step in flight samples counts as known.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] and [`ManagerError::CanNeverFit`] for want of blocks;
    /// [`ManagerError::BudgetExceeded`], [`ManagerError::TooLong`],
    /// [`ManagerError::AlreadyScheduled`], [`ManagerError::AlreadyFinished`],
    /// [`ManagerError::NotAdmitted`], [`ManagerError::Loading`], [`ManagerError::DraftInFlight`] and
    /// [`ManagerError::DraftMismatch`] for calls that make no sense. Nothing has changed then.
    pub fn append(
        &mut self,
        handle: SeqHandle,
        k: u32,
        draft_tokens: &[u32],
    ) -> Result<(), ManagerError> {
        let (slot, row) = self.plan_row(handle, k, draft_tokens)?;
        self.make_room(handle, slot, &row)?;
        self.enter(slot, row, draft_tokens)?;
        self.announce(slot, &row)
    }

    /// Schedules running sequences in the open step, in the order of their admission: first all
    /// that need exactly one token, then the others, each with as many as `chunk`, its known tokens
    /// and what is left of `budget` allow. Sequences that the open step has already are passed
    /// over, so after a preemption a second call goes on where the first stopped.
    ///
    /// Stops at the first sequence that cannot grow and names it; those before it stay scheduled.
    ///
    /// # Errors
    /// Only what the pool refuses when its blocks were tampered with.
    pub fn schedule_running(
        &mut self,
        budget: u32,
        chunk: u32,
    ) -> Result<RunningOutcome, ManagerError> {
        let left_in_step = self.config.max_num_batched_tokens - self.steps.open.num_tokens();
        let mut left = budget.min(left_in_step);
        let mut outcome = RunningOutcome::default();
        for decoding in [true, false] {
            for index in 0..self.running.len() {
                let handle = self.running[index];
                let remaining = self.unscheduled(handle)?;
                let k = if decoding {
                    remaining
                } else {
                    remaining.min(chunk)
                }
                .min(left);
                if k == 0 || (remaining == 1) != decoding {
                    continue;
                }
                let (missing, can_never_fit) = match self.append(handle, k, &[]) {
                    Ok(()) => {
                        left -= k;
                        outcome.num_tokens_scheduled += k;
                        continue;
                    }
                    Err(ManagerError::OutOfBlocks { missing, .. }) => (missing, false),
                    Err(ManagerError::CanNeverFit { asked, usable, .. }) => (asked - usable, true),
                    Err(error) => return Err(error),
                };
                outcome.blocked = Some(Blocked {
                    handle,
                    missing,
                    can_never_fit,
                });
                return Ok(outcome);
            }
        }
        Ok(outcome)
    }

    /// The block copies of the open step, source and destination, in every layer. All must run
    /// before any write of the step; their order does not matter. A caller that does not prepare
    /// steps reads them before the step's first [`commit`](Self::commit), which opens the next.
    pub fn copies(&self) -> impl ExactSizeIterator<Item = (BlockId, BlockId)> {
        self.steps
            .open
            .copies
            .iter()
            .map(|copy| (copy.source, copy.destination))
    }

    /// The slots, block · block size + offset, of the tokens that the sequence's newest uncommitted
    /// append covers. Empty if there is none.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`] and [`ManagerError::UnknownGroup`].
    pub fn slots_of(
        &self,
        handle: SeqHandle,
        group: usize,
    ) -> Result<impl Iterator<Item = i64>, ManagerError> {
        self.check_group(group)?;
        let sequence = self.sequences.get(handle)?;
        let newest = sequence.row.and_then(|slot| {
            let rows = self
                .steps
                .all()
                .rev()
                .filter_map(|step| step.row_of(slot, handle));
            rows.copied().find(|row| row.state == RowState::Live)
        });
        let positions = newest.map_or(0..0, |row| row.start..row.start + row.len);
        let (ids, size) = (sequence.table.ids(group), self.block_size);
        Ok(positions.map(move |at| {
            i64::from(ids[(at / size) as usize]) * i64::from(size) + i64::from(at % size)
        }))
    }

    /// Tokens of a running sequence that the open step could take; none if it has the sequence.
    fn unscheduled(&self, handle: SeqHandle) -> Result<u32, ManagerError> {
        let (sequence, slot) = self.admitted(handle)?;
        let scheduled = self.steps.open.row(slot).is_some();
        Ok(if scheduled { 0 } else { sequence.remaining() })
    }

    /// The slot and the row that an append would enter, if it makes sense.
    fn plan_row(
        &self,
        handle: SeqHandle,
        k: u32,
        draft_tokens: &[u32],
    ) -> Result<(u32, StepRow), ManagerError> {
        let (sequence, slot) = self.admitted(handle)?;
        let open = &self.steps.open;
        let raw = handle.raw();
        if sequence.finished.is_some() {
            return Err(ManagerError::AlreadyFinished { handle: raw });
        }
        if open.row(slot).is_some() {
            return Err(ManagerError::AlreadyScheduled {
                handle: raw,
                step: open.id,
            });
        }
        self.check_loaded(handle)?;
        if sequence.uncertain {
            return Err(ManagerError::DraftInFlight { handle: raw });
        }
        if k == 0 {
            let field = "the number of tokens to append";
            return Err(ManagerError::InvalidRequest {
                field,
                found: 0,
                allowed: "at least 1",
            });
        }
        let max_num_batched_tokens = self.config.max_num_batched_tokens;
        let left = max_num_batched_tokens - open.num_tokens();
        if k > left {
            return Err(ManagerError::BudgetExceeded {
                asked: k,
                left,
                max_num_batched_tokens,
            });
        }
        let (start, max_model_len) = (sequence.scheduled, self.config.max_model_len);
        let end = u64::from(start) + u64::from(k);
        if end > u64::from(max_model_len) {
            return Err(ManagerError::TooLong {
                tokens: end,
                max_model_len,
            });
        }
        let known = sequence.expected_len() - start;
        let drafts = k.saturating_sub(known);
        let given = draft_tokens.len() as u32;
        if given != drafts && given != 0 {
            return Err(ManagerError::DraftMismatch {
                found: given,
                unknown: drafts,
            });
        }
        let state = RowState::Live;
        let at_tip = k >= known;
        Ok((
            slot,
            StepRow {
                handle,
                state,
                start,
                len: k,
                drafts,
                drafts_at: None,
                at_tip,
            },
        ))
    }

    /// Sees to it that the row's tokens have blocks, and that nobody else sees what it writes.
    fn make_room(
        &mut self,
        handle: SeqHandle,
        slot: u32,
        row: &StepRow,
    ) -> Result<(), ManagerError> {
        let end = row.start + row.len;
        let index = (row.start / self.block_size) as usize;
        let table = &self.sequences.get(handle)?.table;
        let missing = (end.div_ceil(self.block_size) as usize).saturating_sub(table.len());
        // Only a block that has tokens already can be shared: later ones were allocated for this
        // sequence, and forks take none of them. While a step in flight writes to it for the
        // sequence nobody else reads it, though blocks waiting to be freed may still be counted.
        let may_be_shared = !row.start.is_multiple_of(self.block_size)
            && !self.steps.writes_in_flight(slot, handle);
        let Scratch { ids, groups, .. } = &mut self.scratch;
        groups.clear();
        if may_be_shared {
            let shared = |group: &usize| !self.pool.is_writable(table.ids(*group)[index]);
            groups.extend((0..table.num_groups()).filter(shared));
        }
        if missing == 0 && groups.is_empty() {
            return Ok(());
        }
        ids.clear();
        ids.resize(groups.len() + missing * table.num_groups(), 0);
        self.blocks_that_can_fit(end)?;
        self.pool
            .allocate(&mut self.scratch.ids)
            .map_err(out_of_blocks)?;
        self.copy_shared(handle, slot, index)?;

        let Scratch { ids, groups, .. } = &self.scratch;
        let table = &mut self.sequences.get_mut(handle)?.table;
        ids[groups.len()..]
            .chunks_exact(table.num_groups())
            .for_each(|ids| table.push(ids));
        Ok(())
    }

    /// Puts the first of `scratch.ids` in the place of the blocks at `index` of `scratch.groups`,
    /// and schedules the copies.
    fn copy_shared(
        &mut self,
        handle: SeqHandle,
        slot: u32,
        index: usize,
    ) -> Result<(), ManagerError> {
        let Scratch { ids, groups, .. } = &self.scratch;
        if groups.is_empty() {
            return Ok(());
        }
        let table = &mut self.sequences.get_mut(handle)?.table;
        table.note_edit(index);
        self.stats.block_copies += groups.len() as u64;
        for (&group, &destination) in groups.iter().zip(ids) {
            let source = table.replace(group, index, destination);
            let copy = BlockCopy {
                source,
                destination,
                row: slot,
                index: index as u32,
            };
            self.steps.open.copies.push(copy);
            self.returns.add_reader(&copy);
            if self.pool.key_of(source).is_some() {
                // Its other holders may belong to another manager, whose releases do not pass
                // through `returns`: our reference keeps it until the copy has run.
                self.steps.open.frees.push(&[source]);
            } else {
                self.returns.release(&[source], &mut self.steps)?;
            }
        }
        Ok(())
    }

    fn enter(
        &mut self,
        slot: u32,
        mut row: StepRow,
        draft_tokens: &[u32],
    ) -> Result<(), ManagerError> {
        let open = &mut self.steps.open;
        if !draft_tokens.is_empty() {
            row.drafts_at = Some(open.drafts.len() as u32);
            open.drafts.extend_from_slice(draft_tokens);
        }
        open.insert(slot, row);
        let sequence = self.sequences.get_mut(row.handle)?;
        sequence.scheduled = row.start + row.len;
        sequence.uncertain = row.drafts > 0;
        sequence.pending += u32::from(row.at_tip && row.drafts == 0);
        Ok(())
    }

    /// Announces the blocks that the row fills with tokens already known.
    fn announce(&mut self, slot: u32, row: &StepRow) -> Result<(), ManagerError> {
        let Some(hasher) = &self.hasher else {
            return Ok(());
        };
        let sequence = self.sequences.get_mut(row.handle)?;
        let full = row.known_end().min(sequence.len()) / self.block_size;
        let first = (row.start / self.block_size).max(sequence.settled);
        if first >= full {
            return Ok(());
        }
        sequence
            .chain
            .extend_to(full as usize, &sequence.tokens, self.block_size, hasher);
        for index in first..full {
            let mut tokens_at = None;
            for group in 0..self.num_groups() {
                let Some(link) = self.name_block(row.handle, index as usize, group)? else {
                    return Ok(());
                };
                let sequence = self.sequences.get(row.handle)?;
                let key = sequence.chain.keys()[index as usize].with_group(group as u32);
                // Of two rows that compute the same content the first one is offered.
                let Entry::Vacant(entry) = self.announced.entry(key) else {
                    continue;
                };
                if self.config.verify_tokens && tokens_at.is_none() {
                    let start = (index * self.block_size) as usize;
                    let tokens = &sequence.tokens[start..start + self.block_size as usize];
                    tokens_at = Some(self.steps.open.keep_block(tokens));
                }
                let block = sequence.table.ids(group)[index as usize];
                entry.insert(Announced {
                    block,
                    step: self.steps.open.id,
                    link,
                    tokens_at,
                });
                let (owner, group) = (row.handle, group as u32);
                let parent = sequence.chain.parent_of(index as usize);
                self.steps.open.announcements.push(Announcement {
                    key,
                    block,
                    owner,
                    row: slot,
                    group,
                    index,
                    parent,
                    link,
                    tokens_at,
                });
            }
        }
        Ok(())
    }
}
