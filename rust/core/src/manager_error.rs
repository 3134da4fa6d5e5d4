//! What a [`KVCacheManager`](crate::KVCacheManager) refuses, each with the numbers to act on.

use std::error::Error;
use std::fmt;

use crate::{OutOfBlocks, PoolError};

/// Why a call to the sequence manager changed nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ManagerError {
    /// A configuration value is outside what is allowed.
    InvalidConfig {
        /// The field at fault.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// Two groups of one manager have different block sizes.
    MixedBlockSizes {
        /// Index of the group that differs.
        group: usize,
        /// Its block size.
        found: u32,
        /// The block size of group 0.
        expected: u32,
    },
    /// The handle names no open sequence: it was closed, or never given out.
    UnknownHandle {
        /// The raw handle.
        handle: u64,
    },
    /// A request value is outside what is allowed.
    InvalidRequest {
        /// The field at fault.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// The sequence would be longer than the manager's longest.
    TooLong {
        /// Tokens asked for in all.
        tokens: u64,
        /// The most a sequence may have.
        max_model_len: u32,
    },
    /// The sequence needs more blocks than the pool has, so waiting cannot help.
    CanNeverFit {
        /// Tokens the sequence must hold.
        tokens: u32,
        /// Blocks that takes, over all groups.
        asked: u32,
        /// Blocks the pool could ever give.
        usable: u32,
    },
    /// The pool has too few free blocks now.
    OutOfBlocks {
        /// Blocks that must become free before the call can succeed.
        missing: u32,
        /// The pool's answer.
        pool: OutOfBlocks,
    },
    /// Every row slot is taken.
    NoFreeRow {
        /// Rows asked for.
        asked: u32,
        /// Rows free.
        free: u32,
        /// Rows the manager has.
        max_num_seqs: u32,
    },
    /// The sequence already holds blocks and a row.
    AlreadyAdmitted {
        /// The raw handle.
        handle: u64,
    },
    /// The sequence holds no row: it was never admitted, or was preempted.
    NotAdmitted {
        /// The raw handle.
        handle: u64,
    },
    /// The sequence has met its stop condition; only reading, truncating and closing are left.
    AlreadyFinished {
        /// The raw handle.
        handle: u64,
    },
    /// Something outside fills blocks of the sequence, and that has not ended.
    Loading {
        /// The raw handle.
        handle: u64,
    },
    /// The sequence waits for no load, so none can end.
    NotLoading {
        /// The raw handle.
        handle: u64,
    },
    /// The caller offered more tokens than may come from outside: at least the last is computed.
    TooManyExternalTokens {
        /// Tokens offered.
        found: u32,
        /// Tokens that may come.
        left: u32,
        /// Leading tokens that are cached.
        cached: u32,
        /// Tokens of the sequence.
        tokens: u32,
    },
    /// The sequence is already in the step being filled.
    AlreadyScheduled {
        /// The raw handle.
        handle: u64,
        /// The open step.
        step: u64,
    },
    /// The call would change blocks that an uncommitted step reads or writes.
    InUncommittedStep {
        /// The raw handle.
        handle: u64,
        /// The newest such step.
        step: u64,
    },
    /// Where the next token goes depends on how many drafts of a step in flight are accepted.
    DraftInFlight {
        /// The raw handle.
        handle: u64,
    },
    /// The number of draft tokens does not fit the number of tokens scheduled.
    DraftMismatch {
        /// Draft tokens given.
        found: u32,
        /// Scheduled tokens that the sequence does not know yet.
        unknown: u32,
    },
    /// The open step cannot take that many tokens.
    BudgetExceeded {
        /// Tokens asked for.
        asked: u32,
        /// Tokens the open step has room for.
        left: u32,
        /// The most a step may have.
        max_num_batched_tokens: u32,
    },
    /// As many steps are uncommitted as the manager allows.
    TooManySteps {
        /// Uncommitted steps.
        in_flight: u32,
        /// The most allowed.
        max_steps_in_flight: u32,
    },
    /// The open step has no rows, so there is nothing to run.
    NothingScheduled,
    /// The step is not the oldest uncommitted one, or not in flight at all.
    UnknownStep {
        /// The step named.
        step: u64,
        /// The oldest uncommitted step, if any.
        oldest: Option<u64>,
    },
    /// A commit brought the wrong number of sampled tokens.
    SampleCount {
        /// Samples given.
        found: u32,
        /// Rows of the step that sample.
        expected: u32,
    },
    /// A sampled token is negative.
    InvalidToken {
        /// The row it was sampled for.
        row: u32,
        /// The value found.
        found: i32,
    },
    /// A row with draft tokens needs the accepted ones, which one sample cannot tell.
    DraftsNeedCommit {
        /// The raw handle.
        handle: u64,
    },
    /// The sequence has no append waiting for a commit.
    NothingToCommit {
        /// The raw handle.
        handle: u64,
    },
    /// The number of accepted tokens does not fit the append.
    AcceptedCount {
        /// Tokens given.
        found: u32,
        /// The fewest that fit.
        at_least: u32,
        /// The most that fit.
        at_most: u32,
    },
    /// A token was accepted at a place where another one was drafted and run.
    AcceptedMismatch {
        /// Position in the sequence.
        position: u32,
        /// The token drafted.
        drafted: u32,
        /// The token accepted.
        accepted: u32,
    },
    /// A step buffer has the wrong size.
    BufferSize {
        /// The buffer at fault.
        buffer: &'static str,
        /// Elements found.
        found: usize,
        /// Elements required.
        required: usize,
    },
    /// There is no such group.
    UnknownGroup {
        /// The group named.
        group: usize,
        /// Groups the manager has.
        groups: usize,
    },
    /// The pool refused: ids were handed to it behind the manager's back, or counts overflowed.
    Pool(PoolError),
}

impl fmt::Display for ManagerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidConfig {
                field,
                found,
                allowed,
            }
            | Self::InvalidRequest {
                field,
                found,
                allowed,
            } => {
                write!(f, "{field} is {found}; allowed is {allowed}")
            }
            Self::MixedBlockSizes {
                group,
                found,
                expected,
            } => write!(
                f,
                "group {group} has blocks of {found} tokens and group 0 blocks of {expected}; the groups of one \
                 manager must have the same block size"
            ),
            Self::UnknownHandle { handle } => {
                write!(f, "no open sequence has the handle {handle:#x}")
            }
            Self::TooLong {
                tokens,
                max_model_len,
            } => {
                write!(
                    f,
                    "a sequence of {tokens} tokens is longer than max_model_len, {max_model_len}"
                )
            }
            Self::CanNeverFit {
                tokens,
                asked,
                usable,
            } => write!(
                f,
                "{tokens} tokens need {asked} blocks and the pool has {usable} usable: the sequence can never fit"
            ),
            Self::OutOfBlocks { missing, pool } => {
                write!(f, "{missing} blocks are missing: {pool}")
            }
            Self::NoFreeRow {
                asked,
                free,
                max_num_seqs,
            } => {
                write!(
                    f,
                    "asked for {asked} rows, {free} free of {max_num_seqs} (max_num_seqs)"
                )
            }
            Self::AlreadyAdmitted { handle } => {
                write!(f, "sequence {handle:#x} is already admitted")
            }
            Self::NotAdmitted { handle } => {
                write!(
                    f,
                    "sequence {handle:#x} is not admitted (never was, or was preempted)"
                )
            }
            Self::AlreadyFinished { handle } => write!(f, "sequence {handle:#x} has finished"),
            Self::Loading { handle } => write!(
                f,
                "blocks of sequence {handle:#x} are being filled from outside; call finish_load when that has ended"
            ),
            Self::NotLoading { handle } => {
                write!(
                    f,
                    "sequence {handle:#x} waits for no load: it was admitted without external tokens, or the load has ended"
                )
            }
            Self::TooManyExternalTokens {
                found,
                left,
                cached,
                tokens,
            } => write!(
                f,
                "{found} external tokens are offered and {left} can be taken: the sequence has {tokens}, the first \
                 {cached} are cached, and the last one is always computed"
            ),
            Self::AlreadyScheduled { handle, step } => {
                write!(
                    f,
                    "sequence {handle:#x} is already scheduled in step {step}"
                )
            }
            Self::InUncommittedStep { handle, step } => {
                write!(
                    f,
                    "sequence {handle:#x} is in step {step}, which is not committed yet"
                )
            }
            Self::DraftInFlight { handle } => write!(
                f,
                "sequence {handle:#x} has draft tokens in an uncommitted step; commit that before appending"
            ),
            Self::DraftMismatch { found, unknown } => write!(
                f,
                "{found} draft tokens given, but {unknown} of the scheduled tokens are beyond the known ones"
            ),
            Self::BudgetExceeded {
                asked,
                left,
                max_num_batched_tokens,
            } => write!(
                f,
                "asked for {asked} tokens, the open step has room for {left} of {max_num_batched_tokens} \
                 (max_num_batched_tokens)"
            ),
            Self::TooManySteps {
                in_flight,
                max_steps_in_flight,
            } => write!(
                f,
                "{in_flight} steps are uncommitted and {max_steps_in_flight} are allowed (max_steps_in_flight)"
            ),
            Self::NothingScheduled => write!(f, "no row is scheduled in the open step"),
            Self::UnknownStep {
                step,
                oldest: Some(oldest),
            } => {
                write!(
                    f,
                    "step {step} is not the oldest uncommitted step, which is {oldest}"
                )
            }
            Self::UnknownStep { step, oldest: None } => {
                write!(f, "step {step} is not in flight; no step is uncommitted")
            }
            Self::SampleCount { found, expected } => {
                write!(
                    f,
                    "{found} sampled tokens given, the step has {expected} sampling rows"
                )
            }
            Self::InvalidToken { row, found } => {
                write!(
                    f,
                    "row {row} sampled the token {found}; tokens are not negative"
                )
            }
            Self::DraftsNeedCommit { handle } => write!(
                f,
                "sequence {handle:#x} ran draft tokens: commit it on its own, with the tokens accepted"
            ),
            Self::NothingToCommit { handle } => {
                write!(f, "sequence {handle:#x} has no append waiting for a commit")
            }
            Self::AcceptedCount {
                found,
                at_least,
                at_most,
            } => {
                write!(
                    f,
                    "{found} accepted tokens given; this append takes {at_least} to {at_most}"
                )
            }
            Self::AcceptedMismatch {
                position,
                drafted,
                accepted,
            } => write!(
                f,
                "token {accepted} accepted at position {position}, where the draft that was run is {drafted}"
            ),
            Self::BufferSize {
                buffer,
                found,
                required,
            } => {
                write!(
                    f,
                    "buffer {buffer} has {found} elements, {required} are required"
                )
            }
            Self::UnknownGroup { group, groups } => {
                write!(f, "there is no group {group}; the manager has {groups}")
            }
            Self::Pool(error) => error.fmt(f),
        }
    }
}

impl Error for ManagerError {}

impl From<PoolError> for ManagerError {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}
