//! The blocks of one prompt.

use looseleaf::{BlockId, BlockKey};

use super::PREFIX;
use crate::pools::Pool;

/// The keys of a prefix and, while it is held, its blocks.
pub struct Prefix {
    keys: [BlockKey; PREFIX],
    ids: [BlockId; PREFIX],
}

impl Prefix {
    /// The `n`-th of endlessly many that have no key in common.
    pub fn nth(n: u64) -> Self {
        let mut prefix = Self {
            keys: [BlockKey([0; 4]); PREFIX],
            ids: [0; PREFIX],
        };
        prefix.rename(n);
        prefix
    }

    /// Makes it the `n`-th.
    pub fn rename(&mut self, n: u64) {
        for (key, i) in self.keys.iter_mut().zip(n * PREFIX as u64..) {
            *key = digest(i);
        }
    }

    /// Takes new blocks and publishes them.
    pub fn fill<P: Pool>(&mut self, pool: &P) {
        assert!(pool.allocate(&mut self.ids));
        assert_eq!(pool.publish(&self.ids, &self.keys), PREFIX);
    }

    /// Takes the blocks that are cached; returns how many.
    pub fn hit<P: Pool>(&mut self, pool: &P) -> usize {
        pool.match_prefix(&self.keys, &mut self.ids)
    }

    /// Gives all of them back, the tail first.
    pub fn release<P: Pool>(&mut self, pool: &P) {
        self.ids.reverse();
        pool.release(&self.ids);
    }
}

/// As good as a digest for everything that pools do with one, and much cheaper.
fn digest(i: u64) -> BlockKey {
    let mixed = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let first = (mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let second = (first ^ first >> 29).wrapping_mul(0x94D0_49BB_1331_11EB);
    BlockKey([first ^ first >> 32, second ^ second >> 32, mixed, i])
}
