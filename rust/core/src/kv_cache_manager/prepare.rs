//! Closing the open step into the caller's arrays.

use super::KVCacheManager;
use crate::manager_error::ManagerError;
use crate::step_buffers::{BufferLayout, BufferSizes, StepBuffers};

/// What a prepared step contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepInfo {
    /// The step's number, to commit or fail it by.
    pub step: u64,
    /// One more than the highest row slot in it.
    pub num_rows: u32,
    /// Tokens it computes.
    pub num_tokens: u32,
    /// Rows it samples a token for.
    pub num_samples: u32,
    /// Block copies that come before its writes.
    pub num_copies: u32,
    /// Tokens of its longest sequence, those it writes included.
    pub max_seq_len: u32,
    /// The most tokens it computes for one row.
    pub max_query_len: u32,
}

impl KVCacheManager {
    /// The sizes of the arrays that [`prepare`](Self::prepare) takes.
    pub fn buffer_sizes(&self) -> BufferSizes {
        let rows = self.config.max_num_seqs as usize;
        BufferSizes {
            tokens: self.config.max_num_batched_tokens as usize,
            rows,
            blocks_per_row: self.max_blocks_per_seq() as usize,
            copies: rows * self.num_groups(),
            groups: self.num_groups(),
        }
    }

    /// Closes the open step and writes it to `buffers`. It is in flight from now on, until
    /// [`commit_step`](Self::commit_step) or [`fail_step`](Self::fail_step).
    ///
    /// # Errors
    /// [`ManagerError::NothingScheduled`] for an empty step, [`ManagerError::TooManySteps`] if
    /// older ones must be committed first, [`ManagerError::BufferSize`] for arrays of the wrong
    /// size. The step stays open then.
    pub fn prepare(&mut self, buffers: &mut StepBuffers<'_>) -> Result<StepInfo, ManagerError> {
        let in_flight = self.steps.in_flight().len() as u32;
        let max_steps_in_flight = u32::from(self.config.max_steps_in_flight);
        if in_flight >= max_steps_in_flight {
            return Err(ManagerError::TooManySteps {
                in_flight,
                max_steps_in_flight,
            });
        }
        if self.steps.open.num_tokens() == 0 {
            return Err(ManagerError::NothingScheduled);
        }
        let layout = BufferLayout {
            sizes: self.buffer_sizes(),
            block_size: self.block_size,
        };
        buffers.check(&layout.sizes)?;
        let tenancies = self.rows.tenancies();
        let extent = buffers.write(&self.steps.open, &self.sequences, tenancies, &layout)?;
        let position = self.steps.seal();
        let step = &self.steps.in_flight()[position];
        Ok(StepInfo {
            step: step.id,
            num_rows: step.num_slots() as u32,
            num_tokens: extent.num_tokens,
            num_samples: step.sample_rows.len() as u32,
            num_copies: step.copies.len() as u32,
            max_seq_len: extent.max_seq_len,
            max_query_len: extent.max_query_len,
        })
    }
}
