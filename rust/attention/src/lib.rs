//! Paged attention on the CPU.

mod attention;
mod batch;
mod element;
mod error;
mod isa;
mod kernel;
mod layout;
mod plan;
mod workers;

pub use attention::PagedAttention;
pub use batch::{Batch, BlockTables, ScoreTerms};
pub use element::{Bf16, Element};
pub use error::{AttentionError, Mismatch};
pub use isa::Isa;
pub use layout::{CacheShape, GRAIN, Layout, MAX_HEAD_SIZE};
