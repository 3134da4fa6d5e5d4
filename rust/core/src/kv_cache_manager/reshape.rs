//! Sequences that branch, go back, or get a token from elsewhere.

use super::KVCacheManager;
use crate::manager_error::ManagerError;
use crate::sequence::{FinishReason, SeqHandle, Sequence};

impl KVCacheManager {
    /// Makes `n` sequences that continue this one: they have its tokens and share the blocks of its
    /// computed tokens; whoever writes to a shared block first gets a copy. Each takes a row.
    ///
    /// To let them part ways at a token just sampled, [`truncate`](Self::truncate) each by one and
    /// [push](Self::push_token) its own. That works also if the token completed the sequence.
    ///
    /// # Errors
    /// [`ManagerError::NoFreeRow`], [`ManagerError::NotAdmitted`], [`ManagerError::Loading`] and,
    /// while an uncommitted step has the sequence, [`ManagerError::InUncommittedStep`]. Nothing has
    /// changed then.
    pub fn fork(&mut self, handle: SeqHandle, n: u32) -> Result<Vec<SeqHandle>, ManagerError> {
        let slot = self.admitted(handle)?.1;
        self.check_idle(handle, slot)?;
        self.check_loaded(handle)?;
        self.rows.check_free(n)?;
        let mut children = Vec::with_capacity(n as usize);
        for _ in 0..n {
            match self.fork_one(handle) {
                Ok(child) => children.push(child),
                Err(error) => {
                    for child in children {
                        self.close(child)?;
                    }
                    return Err(error);
                }
            }
        }
        for step in self.steps.all_mut() {
            if step.dependants.contains(&handle) {
                step.dependants.extend_from_slice(&children);
            }
        }
        Ok(children)
    }

    fn fork_one(&mut self, handle: SeqHandle) -> Result<SeqHandle, ManagerError> {
        let parent = self.sequences.get(handle)?;
        let blocks = parent.computed.div_ceil(self.block_size) as usize;
        let table = parent
            .table
            .share_prefix(blocks, &self.pool, &mut self.scratch.ids)?;
        let mut child = parent.branch(table);
        child.reserve(self.block_size, self.verifies());
        let child = self.sequences.insert(child);
        let slot = self.rows.take(child)?;
        self.sequences.get_mut(child)?.row = Some(slot);
        self.running.push(child);
        Ok(child)
    }

    /// Cuts the sequence to its first `len` tokens and releases the blocks it no longer needs,
    /// leaves before roots. If the cut goes through a published block, the block is retracted when
    /// nobody else holds it; otherwise the next write goes to a copy. A finished sequence that
    /// loses its last token can go on.
    ///
    /// # Errors
    /// [`ManagerError::InvalidRequest`] unless `len` is 1 to the number of tokens,
    /// [`ManagerError::Loading`] and, while an uncommitted step has the sequence,
    /// [`ManagerError::InUncommittedStep`]. Nothing has changed then.
    pub fn truncate(&mut self, handle: SeqHandle, len: u32) -> Result<(), ManagerError> {
        let sequence = self.sequences.get(handle)?;
        if len == 0 || len > sequence.len() {
            let (field, allowed) = ("the length to cut to", "1 to the number of tokens");
            return Err(ManagerError::InvalidRequest {
                field,
                found: len.into(),
                allowed,
            });
        }
        if let Some(slot) = sequence.row {
            self.check_idle(handle, slot)?;
            self.check_loaded(handle)?;
        }
        if len == sequence.len() {
            return Ok(());
        }
        let cut = (len / self.block_size) as usize;
        let keep = if self.is_being_written(sequence, cut) {
            cut
        } else {
            len.div_ceil(self.block_size) as usize
        };
        let block_size = self.block_size;
        let sequence = self.sequences.get_mut(handle)?;
        sequence.cut_tokens(len, block_size);
        sequence.computed = sequence.computed.min(keep as u32 * block_size);
        sequence.scheduled = sequence.computed;
        let ids = &mut self.scratch.ids;
        ids.clear();
        sequence.table.truncate_into(keep, ids);
        self.returns.release(ids, &mut self.steps)?;
        self.retract_cut(handle, cut)
    }

    /// Adds a token that was sampled elsewhere, such as a forked sequence's own first token, and
    /// says whether it completes the sequence.
    ///
    /// # Errors
    /// [`ManagerError::AlreadyFinished`] and, while an uncommitted step has the sequence,
    /// [`ManagerError::InUncommittedStep`]. Nothing has changed then.
    pub fn push_token(
        &mut self,
        handle: SeqHandle,
        token: u32,
    ) -> Result<Option<FinishReason>, ManagerError> {
        let sequence = self.sequences.get(handle)?;
        if sequence.finished.is_some() {
            return Err(ManagerError::AlreadyFinished {
                handle: handle.raw(),
            });
        }
        if let Some(slot) = sequence.row {
            self.check_idle(handle, slot)?;
        }
        let sequence = self.sequences.get_mut(handle)?;
        let finished = sequence.push_token(token);
        if let Some(hasher) = &self.hasher {
            let blocks = sequence.tokens.len() / self.block_size as usize;
            sequence
                .chain
                .extend_to(blocks, &sequence.tokens, self.block_size, hasher);
        }
        Ok(finished)
    }

    /// Whether the sequence was admitted onto a block at this index that a step has yet to fill.
    /// Neither a copy nor a write could be put in order with that.
    fn is_being_written(&self, sequence: &Sequence, index: usize) -> bool {
        let Some(key) = sequence.chain.keys().get(index) else {
            return false;
        };
        (0..sequence.table.num_groups()).any(|group| {
            let announced = self.announced.get(&key.with_group(group as u32));
            let block = sequence.table.ids(group).get(index);
            announced.is_some_and(|announced| Some(&announced.block) == block)
        })
    }

    /// Forgets the hashes of the blocks that a cut went through, as far as nobody else holds them.
    fn retract_cut(&mut self, handle: SeqHandle, index: usize) -> Result<(), ManagerError> {
        let table = &self.sequences.get(handle)?.table;
        for group in 0..table.num_groups() {
            if let Some(&block) = table.ids(group).get(index)
                && self.pool.ref_cnt(block) == 1
            {
                self.pool.retract(block)?;
            }
        }
        Ok(())
    }
}
