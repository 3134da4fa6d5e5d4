//! An engine whose device is a few vectors: it runs the steps of a [`KVCacheManager`] on simulated
//! cache memory and checks that every row reads its own prefix and nothing else.
//!
//! The oracle is memory itself. A written slot remembers which token it is, where it stands and
//! what came before it; a read compares that with what the test knows of the sequence. Block
//! tables, copies, hits, publishes and frees have no other way to be right.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod arrays;
mod checks;
mod coverage;
mod departures;
mod engine;
mod launch;
mod loads;
mod memory;
mod mirror;

pub use arrays::Arrays;
pub use coverage::Coverage;
pub use engine::Engine;
pub use memory::{Cell, Memory, next_token};
pub use mirror::Mirror;

use std::sync::Arc;

use looseleaf::{
    BlockPool, DuplicatePolicy, FreeOrder, GroupKind, GroupSpec, HashAlgo, KVCacheManager,
    ManagerConfig, PoolConfig,
};

/// Sizes of a pool and a manager over it.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub usable_blocks: u32,
    pub null_block: bool,
    pub block_size: u32,
    pub groups: usize,
    pub max_num_seqs: u32,
    pub max_model_len: u32,
    pub max_num_batched_tokens: u32,
    pub steps_in_flight: u8,
    pub prefix_caching: bool,
    pub free_order: FreeOrder,
    pub duplicate_policy: DuplicatePolicy,
    /// Keys of so few bits that they collide all the time.
    pub hash_bits: Option<u32>,
    pub verify_tokens: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            usable_blocks: 64,
            null_block: true,
            block_size: 4,
            groups: 1,
            max_num_seqs: 8,
            max_model_len: 256,
            max_num_batched_tokens: 512,
            steps_in_flight: 1,
            prefix_caching: true,
            free_order: FreeOrder::UnhashedFirst,
            duplicate_policy: DuplicatePolicy::FirstWins,
            hash_bits: None,
            verify_tokens: false,
        }
    }
}

impl Setup {
    pub fn pool(&self) -> Arc<BlockPool> {
        Arc::new(
            BlockPool::new(PoolConfig {
                reserve_null_block: self.null_block,
                free_order: self.free_order,
                duplicate_policy: self.duplicate_policy,
                verify_tokens: if self.verify_tokens {
                    self.block_size
                } else {
                    0
                },
                ..PoolConfig::new(self.usable_blocks + u32::from(self.null_block))
            })
            .expect("the pool's configuration is valid"),
        )
    }

    /// Memory for the pool's blocks.
    pub fn memory(&self) -> Memory {
        let blocks = self.usable_blocks + u32::from(self.null_block);
        Memory::new(self.groups, blocks as usize, self.block_size)
    }

    pub fn config(&self) -> ManagerConfig {
        let group = GroupSpec {
            kind: GroupKind::Full,
            layers: Vec::new(),
            block_size: self.block_size,
            sliding_window: None,
        };
        ManagerConfig {
            groups: vec![group; self.groups],
            max_num_seqs: self.max_num_seqs,
            max_model_len: self.max_model_len,
            max_num_batched_tokens: self.max_num_batched_tokens,
            enable_prefix_caching: self.prefix_caching,
            hash_algo: self.hash_bits.map_or(HashAlgo::Xxh3, HashAlgo::FewBits),
            hash_seed: None,
            verify_tokens: self.verify_tokens,
            max_steps_in_flight: self.steps_in_flight,
        }
    }

    pub fn manager(&self) -> KVCacheManager {
        KVCacheManager::new(self.pool(), self.config()).expect("the configuration is valid")
    }
}
