//! What the manager's calls return, as small read-only objects.

use pyo3::prelude::*;

use crate::manager::reason_name;

/// What a prepared step contains.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct StepInfo {
    /// Number of the step, for `commit_step` and `fail_step`.
    step: u64,
    /// One more than the highest row slot in the step.
    num_rows: u32,
    num_tokens: u32,
    num_samples: u32,
    num_copies: u32,
    max_seq_len: u32,
    max_query_len: u32,
}

impl From<looseleaf::StepInfo> for StepInfo {
    fn from(info: looseleaf::StepInfo) -> Self {
        Self {
            step: info.step,
            num_rows: info.num_rows,
            num_tokens: info.num_tokens,
            num_samples: info.num_samples,
            num_copies: info.num_copies,
            max_seq_len: info.max_seq_len,
            max_query_len: info.max_query_len,
        }
    }
}

/// A sequence that a step completed.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct FinishedRow {
    handle: u64,
    row: u32,
    reason: &'static str,
}

impl From<looseleaf::FinishedRow> for FinishedRow {
    fn from(row: looseleaf::FinishedRow) -> Self {
        Self {
            handle: row.handle.raw(),
            row: row.row,
            reason: reason_name(row.reason),
        }
    }
}

/// How far `schedule_running` came.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct RunningOutcome {
    num_tokens_scheduled: u32,
    /// The sequence that could not grow and the blocks it lacks, or `None`.
    blocked: Option<(u64, u32)>,
    /// It needs more blocks than the pool has, so that no preemption of others can help.
    can_never_fit: bool,
}

impl From<looseleaf::RunningOutcome> for RunningOutcome {
    fn from(outcome: looseleaf::RunningOutcome) -> Self {
        Self {
            num_tokens_scheduled: outcome.num_tokens_scheduled,
            blocked: outcome
                .blocked
                .map(|blocked| (blocked.handle.raw(), blocked.missing)),
            can_never_fit: outcome.blocked.is_some_and(|blocked| blocked.can_never_fit),
        }
    }
}

/// What an admission would find.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct PrefixMatch {
    num_cached_tokens: u32,
    /// Cached blocks of that prefix that nobody holds: taking them uses up free blocks.
    free_hit_blocks: u32,
    new_blocks: u32,
}

impl From<looseleaf::PrefixMatch> for PrefixMatch {
    fn from(found: looseleaf::PrefixMatch) -> Self {
        Self {
            num_cached_tokens: found.num_cached_tokens,
            free_hit_blocks: found.free_hit_blocks,
            new_blocks: found.new_blocks,
        }
    }
}
