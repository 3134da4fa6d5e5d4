//! Blocks that are filled from outside: from an admission with external tokens until the caller says
//! that the load has ended.
//!
//! Until then the sequence is in no step, and the blocks are its own alone: without a hash, so that
//! no look-up finds them, and held, so that nobody is given them. That stays so when the sequence
//! leaves meanwhile, since what fills them may not know.

use super::KVCacheManager;
use crate::BlockKey;
use crate::manager_error::ManagerError;
use crate::sequence::{SeqHandle, Sequence};

/// What a sequence waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Tokens that come from outside, from the first that is not computed on.
    pub(crate) tokens: u32,
    /// Its first admission began it.
    pub(crate) is_first: bool,
}

impl KVCacheManager {
    /// Ends the load that an [admission](Self::admit) with external tokens began: nothing writes to
    /// its blocks any more, and the first `tokens` of those tokens are there. They count as computed
    /// from now on, and full blocks of them can be hit; the sequence computes the others itself.
    ///
    /// Says whether the sequence still has the blocks. If it was preempted or closed meanwhile they
    /// become free now, whatever is in them.
    ///
    /// # Errors
    /// [`ManagerError::NotLoading`], [`ManagerError::UnknownHandle`] for a closed sequence without a
    /// load, and [`ManagerError::InvalidRequest`] for more tokens than were to come. Nothing has
    /// changed then.
    pub fn finish_load(&mut self, handle: SeqHandle, tokens: u32) -> Result<bool, ManagerError> {
        if let Some(blocks) = self.abandoned_loads.remove(&handle) {
            self.returns.release(&blocks, &mut self.steps)?;
            return Ok(false);
        }
        let sequence = self.sequences.get_mut(handle)?;
        let Some(load) = sequence.loading else {
            let handle = handle.raw();
            return Err(ManagerError::NotLoading { handle });
        };
        if tokens > load.tokens {
            return Err(ManagerError::InvalidRequest {
                field: "the number of loaded tokens",
                found: tokens.into(),
                allowed: "at most the external tokens of the admission",
            });
        }
        sequence.loading = None;
        sequence.computed += tokens;
        sequence.scheduled = sequence.computed;
        if load.is_first {
            sequence.cached = sequence.cached.map(|cached| cached + tokens);
        }
        self.stats.external_tokens += u64::from(tokens);
        self.publish_full(handle)?;
        Ok(true)
    }

    /// Whether a load into blocks of the sequence has not ended, be it that of an admission before
    /// the last preemption.
    pub fn is_loading(&self, handle: SeqHandle) -> bool {
        let waits = |sequence: &Sequence| sequence.loading.is_some();
        self.abandoned_loads.contains_key(&handle) || self.sequences.get(handle).is_ok_and(waits)
    }

    /// The keys of the sequence's full blocks, as far as they are known: those of its prompt, and of
    /// what it has computed. None without prefix caching.
    ///
    /// # Errors
    /// [`ManagerError::UnknownHandle`].
    pub fn block_keys(&self, handle: SeqHandle) -> Result<&[BlockKey], ManagerError> {
        Ok(self.sequences.get(handle)?.chain.keys())
    }

    /// Refuses external tokens that the sequence has no place for behind `hits` cached blocks.
    pub(super) fn check_external(
        &self,
        handle: SeqHandle,
        hits: u32,
        external_tokens: u32,
    ) -> Result<(), ManagerError> {
        if external_tokens == 0 {
            return Ok(());
        }
        if self.abandoned_loads.contains_key(&handle) {
            let handle = handle.raw();
            return Err(ManagerError::Loading { handle });
        }
        let len = self.sequences.get(handle)?.len();
        let left = len - 1 - hits * self.block_size;
        if external_tokens > left {
            return Err(ManagerError::TooManyExternalTokens {
                found: external_tokens,
                left,
                cached: hits * self.block_size,
                tokens: len,
            });
        }
        Ok(())
    }

    /// Refuses a change to a sequence whose blocks are being filled.
    pub(super) fn check_loaded(&self, handle: SeqHandle) -> Result<(), ManagerError> {
        match self.sequences.get(handle)?.loading {
            None => Ok(()),
            Some(_) => Err(ManagerError::Loading {
                handle: handle.raw(),
            }),
        }
    }

    /// Takes the blocks that are being filled from a sequence that leaves, and keeps them until the
    /// load ends.
    pub(super) fn abandon_load(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        let sequence = self.sequences.get_mut(handle)?;
        let Some(load) = sequence.loading.take() else {
            return Ok(());
        };
        let end = (sequence.computed + load.tokens).div_ceil(self.block_size);
        let ids = &mut self.scratch.ids;
        ids.clear();
        sequence.table.truncate_into(end as usize, ids);
        let mut blocks = Vec::new();
        let first = sequence.settled as usize;
        sequence.table.truncate_into(first, &mut blocks);
        self.abandoned_loads.insert(handle, blocks);
        // No step has seen them: the sequence is in none before its load has ended.
        self.returns.release(ids, &mut self.steps)?;
        Ok(())
    }
}
