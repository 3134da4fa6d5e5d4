//! What happens when a step, or a row's part in one, is over.

use super::KVCacheManager;
use crate::manager_error::ManagerError;
use crate::sequence::SeqHandle;
use crate::step::{Announcement, DeferredFrees, RowState, Step, StepRow};
use crate::{BlockContent, BlockId, BlockKey, BlockPool, PoolError, PrefixId, Published};

impl KVCacheManager {
    /// Takes a step out of flight: publishes what it filled for sequences that have left, and frees
    /// what waited for it.
    pub(super) fn end_step(&mut self, position: usize) -> Result<(), ManagerError> {
        let Some(step) = self.steps.take(position) else {
            return Ok(());
        };
        for announcement in &step.announcements {
            self.announced.remove(&announcement.key);
            // Whoever had its row committed has published its blocks by then.
            let row = step.row(announcement.row);
            if row.is_some_and(|row| row.state == RowState::Dropped) {
                self.publish_for(announcement, &step)?;
            }
        }
        for copy in &step.copies {
            self.returns.drop_reader(copy);
        }
        self.give_back(&step.frees, position)?;
        self.steps.recycle(step);
        Ok(())
    }

    /// Ends the steps that are over although nobody commits them: those that ran unprepared and
    /// have no live row left, and an open step that lost its rows again.
    pub(super) fn end_idle_steps(&mut self) -> Result<(), ManagerError> {
        while let Some(position) = self.steps.in_flight().iter().position(Step::is_over) {
            self.end_step(position)?;
        }
        if self.steps.open.num_slots() == 0 && !self.steps.open.frees.ids().is_empty() {
            let frees = std::mem::take(&mut self.steps.open.frees);
            let outcome = self.give_back(&frees, self.steps.in_flight().len());
            self.steps.open.frees = frees;
            self.steps.open.frees.clear();
            outcome?;
        }
        Ok(())
    }

    /// Frees what waited for a step that was at this place among those in flight. Should it be over
    /// before an older one, that one may use the same blocks.
    fn give_back(&mut self, frees: &DeferredFrees, position: usize) -> Result<(), ManagerError> {
        if let Some(running) = self.steps.newest_running_before(position) {
            frees.lists().for_each(|list| running.frees.push(list));
            return Ok(());
        }
        for list in frees.lists() {
            self.returns.release(list, &mut self.steps)?;
        }
        Ok(())
    }

    /// What the sequence announced in a step in flight is there: the announcement has served.
    pub(super) fn end_announcements(&mut self, position: usize, owner: SeqHandle) {
        let announced = &mut self.announced;
        self.steps
            .at_mut(position)
            .retain_announcements(|announcement, _| {
                let stays = announcement.owner != owner;
                if !stays {
                    announced.remove(&announcement.key);
                }
                stays
            });
    }

    /// Publishes what the sequence announced in a step that has run, without waiting for its end.
    pub(super) fn publish_announced(
        &mut self,
        position: usize,
        owner: SeqHandle,
    ) -> Result<(), ManagerError> {
        let step = &self.steps.in_flight()[position];
        for announcement in step.announcements.iter().filter(|it| it.owner == owner) {
            self.publish_for(announcement, step)?;
        }
        self.end_announcements(position, owner);
        Ok(())
    }

    /// Publishes an announced block for a sequence that has left.
    fn publish_for(&self, announcement: &Announcement, step: &Step) -> Result<(), PoolError> {
        let content = BlockContent {
            parent: announcement.parent,
            tokens: step.kept_tokens(announcement.tokens_at, self.block_size),
            group: announcement.group,
            after: Some(announcement.link.after),
        };
        // Announced under the pool's key; mixing the group in twice gives the chain's.
        let key = announcement.key.with_group(announcement.group);
        let name = Some(announcement.link.name);
        publish_block(&self.pool, announcement.block, &key, &content, name).map(drop)
    }

    /// Takes back announcements of a step: what they promised will not be there. Those who relied
    /// on it must go, see [`evict_dependants`](Self::evict_dependants).
    pub(super) fn withdraw(
        &mut self,
        step: u64,
        broken: impl Fn(&Announcement, Option<&StepRow>) -> bool,
    ) {
        let (announced, lost) = (&mut self.announced, &mut self.scratch.lost);
        for step in self
            .steps
            .all_mut()
            .filter(|candidate| candidate.id == step)
        {
            step.retain_announcements(|announcement, row| {
                let stays = !broken(announcement, row);
                if !stays {
                    announced.remove(&announcement.key);
                    lost.push(*announcement);
                }
                stays
            });
        }
    }

    /// Takes the row of a slot, if there is one, out of the open step, with its copies and
    /// announcements. A block that was to be copied is left without content.
    pub(super) fn unschedule(&mut self, slot: u32) {
        let open = &mut self.steps.open;
        let Some(row) = open.remove(slot) else { return };
        let returns = &mut self.returns;
        open.copies.retain(|copy| {
            let stays = copy.row != slot;
            if !stays {
                returns.drop_reader(copy);
            }
            stays
        });
        let id = open.id;
        self.withdraw(id, |announcement, _| announcement.owner == row.handle);
    }

    /// A sequence is complete: what later steps compute for it is not wanted.
    pub(super) fn drop_later_rows(
        &mut self,
        handle: SeqHandle,
        slot: u32,
    ) -> Result<(), ManagerError> {
        // In the open step, a row of a sequence that a step in flight completes has no copies,
        // since that step wrote for it, and no announcements, since its tokens were not known.
        debug_assert!(self.steps.open.first_copied(slot).is_none());
        self.unschedule(slot);
        debug_assert!(self.scratch.lost.is_empty());
        for step in self.steps.all_mut() {
            if step.row_of(slot, handle).is_some() {
                step.settle(slot, RowState::Dropped);
            }
        }
        self.sequences.get_mut(handle)?.forget_appends();
        Ok(())
    }
}

/// Publishes a block, unless somebody who shares it already did. Returns the name of the prefix that
/// ends with it; `name` is the one to give it if no cached block of this content has one.
pub(super) fn publish_block(
    pool: &BlockPool,
    block: BlockId,
    key: &BlockKey,
    content: &BlockContent<'_>,
    name: Option<PrefixId>,
) -> Result<PrefixId, PoolError> {
    match pool.publish_as(block, key, content, name) {
        // A duplicate stays without a hash, and its holder keeps it.
        Ok((Published::Cached | Published::Duplicate | Published::Full, name)) => Ok(name),
        Err(PoolError::AlreadyPublished { .. }) => Ok(pool.name_of(&content.wanted(key))),
        Err(error) => Err(error),
    }
}
