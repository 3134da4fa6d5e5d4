//! Paged attention on the CPU.
//!
//! The keys and values of all sequences lie in blocks of a few tokens each, anywhere in one cache; a table of block
//! ids says which blocks a sequence has. [`PagedAttention`] writes new keys and values to their slots and attends
//! through the tables, for any mix of whole prompts, pieces of prompts and single tokens.
//!
//! ```
//! use looseleaf_attention::{Batch, BlockTables, CacheShape, PagedAttention, ScoreTerms};
//!
//! let shape = CacheShape { num_blocks: 4, num_layers: 1, block_size: 8, num_kv_heads: 1, head_size: 8 };
//! let attention = PagedAttention::new(shape, 1)?;
//! let mut cache = vec![0.0f32; attention.layout().num_elements()];
//!
//! // Two tokens of one sequence, in block 3; the values are all ones, and all threes.
//! let (keys, values) = ([0.5; 16], [[1.0; 8], [3.0; 8]]);
//! attention.write(&mut cache, 0, &keys, values.as_flattened(), &[3 * 8, 3 * 8 + 1])?;
//!
//! // The second token looks at both: with equal keys it gets the mean of the values.
//! let batch = Batch {
//!     num_tokens: 1,
//!     num_heads: 1,
//!     block_tables: BlockTables::new(&[3], 1, 1, 1)?,
//!     seq_lens: &[2],
//!     cu_seqlens_q: &[0, 1],
//! };
//! let terms = ScoreTerms { scale: 1.0, sliding_window: None, softcap: None, sinks: None };
//! let mut out = [0.0; 8];
//! attention.attend(&cache, 0, &[1.0; 8], &batch, &terms, &mut out)?;
//! assert_eq!(out, [2.0; 8]);
//! # Ok::<(), looseleaf_attention::AttentionError>(())
//! ```
//!
//! # How it works
//!
//! `plan.rs` cuts a batch into tasks: a tile of query tokens times the query heads that share a key/value head, over
//! all keys that they see, or, where a long context has few query tokens, over 1,024 of them. `workers.rs` spreads
//! the tasks over threads. A task takes the keys in chunks of 64 (`kernel/chunk.rs`): all scores of a chunk, one step
//! of the online softmax (Milakov and Gimelshein 2018), all values. Keys and values are thus read once for a whole
//! tile, and an output is never computed from more than the keys its token sees.
//!
//! Numbers in the cache are `f32` or [`Bf16`]; all arithmetic is in `f32`. Sums are taken within a chunk first and
//! over the chunks then, which keeps the rounding error of long contexts low. A result depends on its own row, never
//! on the number of threads or on the other rows.
//!
//! The code of `kernel/` is compiled for each instruction set of [`Isa`], and chosen at run time.

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
