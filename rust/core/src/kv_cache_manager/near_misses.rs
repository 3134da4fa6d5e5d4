//! Why a cache that is on may never hit: prompts that begin alike, but for less than a block.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Beginnings remembered. A newer one takes the place of an older one.
const REMEMBERED: usize = 1024;

/// How a prompt begins: digests of the first quarter of its first block, and of that whole block.
/// They tell tenants apart, since these share nothing anyway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beginning {
    quarter: u64,
    block: u64,
}

impl Beginning {
    /// `None` for a prompt with no block that could be found.
    pub(crate) fn of(tokens: &[u32], salt: Option<&str>, block_size: u32) -> Option<Self> {
        let size = block_size as usize;
        if tokens.len() <= size {
            return None;
        }
        let digest = |tokens: &[u32]| {
            let mut hash = DefaultHasher::new();
            salt.unwrap_or_default().hash(&mut hash);
            tokens.hash(&mut hash);
            hash.finish()
        };
        Some(Self {
            quarter: digest(&tokens[..size.div_ceil(4)]),
            block: digest(&tokens[..size]),
        })
    }
}

/// Beginnings of earlier prompts, by the digest of their first quarter.
#[derive(Debug)]
pub(crate) struct Beginnings(Box<[Option<Beginning>]>);

impl Default for Beginnings {
    fn default() -> Self {
        Self(vec![None; REMEMBERED].into())
    }
}

impl Beginnings {
    /// Remembers how a prompt begins. Says whether an earlier one began alike but differed before
    /// the end of its first block.
    pub(crate) fn is_near_miss(&mut self, beginning: Beginning) -> bool {
        let place = &mut self.0[beginning.quarter as usize % REMEMBERED];
        let before = place.replace(beginning);
        before.is_some_and(|before| {
            before.quarter == beginning.quarter && before.block != beginning.block
        })
    }
}
