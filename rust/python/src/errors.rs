//! Core errors become the exception classes of `looseleaf.errors`.
//!
//! The classes are written in Python, because most inherit two bases. They are looked up when something is
//! raised: no path that succeeds pays for it.

use looseleaf::{ManagerError, OutOfBlocks, PoolError};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;

fn raise<'py>(py: Python<'py>, class: &str, args: impl PyCallArgs<'py>) -> PyErr {
    let exception = py
        .import("looseleaf.errors")
        .and_then(|errors| errors.getattr(class)?.call1(args));
    exception.map_or_else(|import_failed| import_failed, PyErr::from_value)
}

fn raise_text(class: &str, message: String) -> PyErr {
    Python::attach(|py| raise(py, class, (message,)))
}

pub fn invalid_config(message: String) -> PyErr {
    raise_text("InvalidConfigError", message)
}

pub fn invalid_buffer(message: String) -> PyErr {
    raise_text("InvalidBufferError", message)
}

pub fn request_error(message: String) -> PyErr {
    raise_text("RequestError", message)
}

pub fn sequence_state(message: &str) -> PyErr {
    raise_text("SequenceStateError", message.into())
}

pub fn concurrent_use() -> PyErr {
    raise_text(
        "ConcurrentUseError",
        "this KVCacheManager is in use by another thread; give each manager one thread, or a lock of your own".into(),
    )
}

pub fn foreign_blocks(message: String) -> PyErr {
    raise_text("ForeignBlocksError", message)
}

pub fn use_after_fork(class: &str) -> PyErr {
    raise_text(
        "UseAfterForkError",
        format!(
            "this {class} belongs to the process that was forked; its blocks are not this process's: make a new one \
             after the fork, or start workers with multiprocessing's 'spawn'"
        ),
    )
}

pub fn invariant_error(error: impl ToString) -> PyErr {
    raise_text("InvariantError", error.to_string())
}

pub fn out_of_blocks(error: OutOfBlocks) -> PyErr {
    out_of_blocks_saying(error.to_string(), error)
}

fn out_of_blocks_saying(message: String, error: OutOfBlocks) -> PyErr {
    let OutOfBlocks {
        asked,
        free,
        cached,
        pinned,
        total,
    } = error;
    Python::attach(|py| {
        raise(
            py,
            "OutOfBlocksError",
            (message, asked, free, cached, pinned, total),
        )
    })
}

pub fn events_in_use() -> PyErr {
    raise_text(
        "ConcurrentUseError",
        "another thread is draining this pool's events; one at a time, and none waits".into(),
    )
}

pub fn pool_error(error: PoolError) -> PyErr {
    let class = match error {
        PoolError::UnknownBlock { .. } => "UnknownBlockError",
        PoolError::NullBlock => "NullBlockError",
        PoolError::DoubleRelease { .. } => "DoubleReleaseError",
        PoolError::FreeBlock { .. } => "BlockNotHeldError",
        PoolError::DuplicateId { .. } => "DuplicateBlockError",
        PoolError::AlreadyPublished { .. } => "AlreadyPublishedError",
        PoolError::PublishInProgress { .. } => "PublishInProgressError",
        PoolError::RefCountOverflow { .. } => "RefCountOverflowError",
        PoolError::KeyTooWide { .. }
        | PoolError::InvalidConfig { .. }
        | PoolError::TooManyTokens { .. }
        | PoolError::TokensNeeded { .. }
        | PoolError::NoEvents => "InvalidConfigError",
        PoolError::EventsTaken => "ConcurrentUseError",
        PoolError::InUse { .. } => "BlocksInUseError",
        _ => "PoolError",
    };
    raise_text(class, error.to_string())
}

pub fn manager_error(error: ManagerError) -> PyErr {
    let message = error.to_string();
    let class = match error {
        ManagerError::OutOfBlocks { pool, .. } => return out_of_blocks_saying(message, pool),
        ManagerError::Pool(error) => return pool_error(error),
        ManagerError::InvalidConfig { .. }
        | ManagerError::MixedBlockSizes { .. }
        | ManagerError::UnknownGroup { .. } => "InvalidConfigError",
        ManagerError::InvalidRequest { .. } | ManagerError::TooManyExternalTokens { .. } => {
            "RequestError"
        }
        ManagerError::UnknownHandle { .. } => "StaleHandleError",
        ManagerError::TooLong { .. } | ManagerError::CanNeverFit { .. } => "NeverFitsError",
        ManagerError::NoFreeRow { .. } => "NoFreeRowError",
        ManagerError::BufferSize { .. } => "InvalidBufferError",
        ManagerError::SampleCount { .. }
        | ManagerError::InvalidToken { .. }
        | ManagerError::AcceptedCount { .. }
        | ManagerError::AcceptedMismatch { .. }
        | ManagerError::DraftMismatch { .. } => "InvalidTokensError",
        _ => "SequenceStateError",
    };
    raise_text(class, message)
}
