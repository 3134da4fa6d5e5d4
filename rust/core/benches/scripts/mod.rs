//! What a thread does to the pool, over and over.

mod prefix;

use std::hint::black_box;

use looseleaf::BlockId;

use crate::pools::Pool;
use prefix::Prefix;

/// Large enough that the records of the blocks do not all stay in the first two caches.
pub const NUM_BLOCKS: u32 = 1 << 16;
/// Blocks of a prefix: 1024 tokens in blocks of 16.
const PREFIX: usize = 64;

/// One thread's work. `run` leaves the pool as it found it, but for the order of the free queue.
pub trait Script: Send {
    /// Blocks that one `run` handles.
    const BLOCKS: u64;

    /// Called for one thread after the other, before the first `run`.
    fn prepare<P: Pool>(pool: &P, thread: usize) -> Self;

    fn run<P: Pool>(&mut self, pool: &P);
}

/// The beginning and the end of a request that hits nothing.
pub struct AllocateRelease<const BATCH: usize>([BlockId; BATCH]);

impl<const BATCH: usize> Script for AllocateRelease<BATCH> {
    const BLOCKS: u64 = BATCH as u64;

    fn prepare<P: Pool>(_: &P, _: usize) -> Self {
        Self([0; BATCH])
    }

    fn run<P: Pool>(&mut self, pool: &P) {
        assert!(pool.allocate(&mut self.0));
        pool.release(black_box(&self.0));
    }
}

/// A request whose prefix another one is using: on two threads, both hit the same blocks.
pub struct HitHeld(Prefix);

impl Script for HitHeld {
    const BLOCKS: u64 = PREFIX as u64;

    fn prepare<P: Pool>(pool: &P, _: usize) -> Self {
        let mut prefix = Prefix::nth(0);
        // Never given back: this is the request that uses it.
        if prefix.hit(pool) == 0 {
            prefix.fill(pool);
        }
        Self(prefix)
    }

    fn run<P: Pool>(&mut self, pool: &P) {
        assert_eq!(self.0.hit(pool), PREFIX);
        self.0.release(pool);
    }
}

/// A request whose prefix is cached and nobody's: the touch cycle. On two threads each has a prefix
/// of its own, since of a common one the blocks would not be free whenever the other has them.
pub struct HitFree(Prefix);

impl Script for HitFree {
    const BLOCKS: u64 = PREFIX as u64;

    fn prepare<P: Pool>(pool: &P, thread: usize) -> Self {
        let mut prefix = Prefix::nth(1 + thread as u64);
        prefix.fill(pool);
        prefix.release(pool);
        Self(prefix)
    }

    fn run<P: Pool>(&mut self, pool: &P) {
        assert_eq!(self.0.hit(pool), PREFIX);
        self.0.release(pool);
    }
}

/// A sequence that is forked, each thread its own.
pub struct ShareRelease([BlockId; PREFIX]);

impl Script for ShareRelease {
    const BLOCKS: u64 = PREFIX as u64;

    fn prepare<P: Pool>(pool: &P, _: usize) -> Self {
        let mut table = [0; PREFIX];
        assert!(pool.allocate(&mut table));
        Self(table)
    }

    fn run<P: Pool>(&mut self, pool: &P) {
        pool.share(&self.0);
        pool.release(black_box(&self.0));
    }
}

/// A request that hits nothing, in a pool where each free block holds a prefix that somebody left.
/// Both sides pay for making new keys, which is little.
pub struct EvictPublishRelease {
    prefix: Prefix,
    next: u64,
}

impl Script for EvictPublishRelease {
    const BLOCKS: u64 = PREFIX as u64;

    /// Blocks without a hash are handed out first, so this reaches all of them.
    fn prepare<P: Pool>(pool: &P, thread: usize) -> Self {
        let mut script = Self {
            prefix: Prefix::nth(0),
            next: (1 + thread as u64) << 32,
        };
        (0..NUM_BLOCKS as usize / PREFIX).for_each(|_| script.run(pool));
        script
    }

    fn run<P: Pool>(&mut self, pool: &P) {
        self.next += 1;
        self.prefix.rename(self.next);
        self.prefix.fill(pool);
        self.prefix.release(pool);
    }
}
