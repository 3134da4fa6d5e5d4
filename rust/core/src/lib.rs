//! A lock-free KV-cache block pool with a hashed prefix cache.
//!
//! An LLM server keeps the keys and values of every token of every running request. This crate
//! hands out the fixed-size blocks in which they are stored, counts who holds which, and finds
//! blocks that already hold a wanted prefix. It stores no tensors: a block is a number.
//!
//! ```
//! use looseleaf::{BlockKey, BlockPool, PoolConfig};
//!
//! let pool = BlockPool::new(PoolConfig::new(8))?; // 7 usable: block 0 is kept back
//! let mut table = [0; 3];
//! pool.allocate(&mut table)?;
//! assert_eq!(table, [1, 2, 3]);
//!
//! // The first block is full and its keys and values are written: others may use it.
//! let key = BlockKey([1, 2, 3, 4]);
//! pool.publish(table[0], &key)?;
//! let mut hits = [0; 1];
//! assert_eq!(pool.match_prefix(&[key], &mut hits), 1);
//! assert_eq!(pool.ref_cnt(hits[0]), 2);
//!
//! pool.release(&hits)?;
//! pool.release(&[3, 2, 1])?; // tail first
//! assert_eq!(pool.free_order(), [3, 2, 4, 5, 6, 7, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod availability;
mod block_hash;
mod block_key;
mod block_state;
mod clean_stack;
mod config;
pub mod design;
mod distinct_check;
mod error;
mod events;
mod eviction_queue;
mod eviction_ring;
mod invariants;
mod page_list;
mod pool;
mod prefix_contents;
mod prefix_index;
mod stats;
mod sync;

mod block_table;
mod hash_chain;
mod kv_cache_manager;
mod layout;
mod manager_error;
mod sequence;
mod step;
mod step_buffers;

pub use block_hash::{BlockHasher, ExtraKey, HashAlgo};
pub use block_key::{BlockKey, KeyWidth};
pub use config::{DuplicatePolicy, FreeOrder, PoolConfig, Tuning};
pub use error::{OutOfBlocks, PoolError};
pub use events::{BlockContent, Event, EventReader};
pub use invariants::{InvariantError, Violation};
pub use pool::{BlockPool, PrefixPeek, Published};
pub use prefix_contents::{Prefix, PrefixId};
pub use stats::{BlockUse, BlockView, PoolStats};
#[cfg(all(crash_stop, not(any(loom, shuttle))))]
pub use sync::crash_stop;

pub use hash_chain::SpannedKey;
pub use kv_cache_manager::{
    Blocked, FinishedRow, KVCacheManager, ManagerConfig, ManagerStats, OpenParams, PrefixMatch,
    RunningOutcome, StepInfo,
};
pub use layout::{GroupKind, GroupSpec, KvDtype, LayerSpec};
pub use manager_error::ManagerError;
pub use page_list::PageList;
pub use sequence::{FinishReason, SeqHandle};
pub use step_buffers::{BufferMarks, BufferSizes, StepBuffers};

/// Number of a block: its place in the cache tensor.
pub type BlockId = u32;
