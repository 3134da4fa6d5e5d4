//! The interleavings and legal memory orders of one race at a time, explored by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p looseleaf --test loom_pool -- --show-output`; each
//! scenario prints how many executions it explored. Pools have one to four blocks and rings of one
//! or two slots, so that each scenario meets its race at once. The first argument of `check` bounds
//! how often a thread is interrupted where it could have gone on; the second names all outcomes
//! that must be met, so that a scenario cannot silently miss its race.
//!
//! Blocks have a payload in loom's `UnsafeCell`, which fails the model if two accesses are not
//! ordered by what the pool does: this is what tests the memory orderings (INV-14).
#![cfg(loom)]

mod free_blocks;
mod prefix_cache;
mod rings;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use looseleaf::{
    BlockId, BlockKey, BlockPool, DuplicatePolicy, FreeOrder, KeyWidth, PoolConfig, Prefix,
    Published, Tuning,
};

const KEY: BlockKey = BlockKey([1, 2, 0, 0]);
const OTHER: BlockKey = BlockKey([3, 4, 0, 0]);

/// What happened in the executions of one scenario. Kept outside the model.
type Seen = std::sync::Arc<Mutex<BTreeSet<&'static str>>>;

/// A pool whose blocks have content.
struct Cache {
    seen: Seen,
    /// Blocks that threads still hold at the end of the race.
    kept: Mutex<Vec<BlockId>>,
    pool: BlockPool,
    payload: Vec<UnsafeCell<u64>>,
}

// SAFETY: the payload is only accessed by holders of its block, which is what the tests check.
unsafe impl Sync for Cache {}
unsafe impl Send for Cache {}

impl Cache {
    fn new(seen: &Seen, num_blocks: u32, free_order: FreeOrder, tuning: Tuning) -> Arc<Self> {
        Self::with_policy(
            seen,
            num_blocks,
            free_order,
            tuning,
            DuplicatePolicy::FirstWins,
        )
    }

    fn with_policy(
        seen: &Seen,
        num_blocks: u32,
        free_order: FreeOrder,
        tuning: Tuning,
        duplicate_policy: DuplicatePolicy,
    ) -> Arc<Self> {
        let config = PoolConfig {
            free_order,
            duplicate_policy,
            ..Self::config(num_blocks, tuning)
        };
        Self::with_config(seen, config)
    }

    fn config(num_blocks: u32, tuning: Tuning) -> PoolConfig {
        PoolConfig {
            reserve_null_block: false,
            key_width: KeyWidth::Bits128,
            tuning,
            ..PoolConfig::new(num_blocks)
        }
    }

    fn with_config(seen: &Seen, config: PoolConfig) -> Arc<Self> {
        let payload = |_| UnsafeCell::new(0);
        Arc::new(Self {
            seen: seen.clone(),
            kept: Mutex::default(),
            pool: BlockPool::new(config).unwrap(),
            payload: (0..config.num_blocks).map(payload).collect(),
        })
    }

    fn saw(&self, outcome: &'static str) {
        self.seen.lock().unwrap().insert(outcome);
    }

    fn allocate<const N: usize>(&self) -> Option<[BlockId; N]> {
        let mut ids = [0; N];
        self.pool.allocate(&mut ids).ok()?;
        Some(ids)
    }

    fn write(&self, id: BlockId, value: u64) {
        // SAFETY: the caller is the only holder; loom checks.
        self.payload[id as usize].with_mut(|payload| unsafe { *payload = value });
    }

    fn read(&self, id: BlockId) -> u64 {
        // SAFETY: the caller holds the block, and nobody may write meanwhile; loom checks.
        self.payload[id as usize].with(|payload| unsafe { *payload })
    }

    fn hit(&self, key: BlockKey) -> Option<BlockId> {
        let mut ids = [0];
        (self.pool.match_prefix(&[key], &mut ids) == 1).then_some(ids[0])
    }

    /// Allocates one block with content `value` under `key`.
    fn fill(&self, key: BlockKey, value: u64) -> BlockId {
        let [id] = self.allocate().unwrap();
        self.write(id, value);
        assert_eq!(self.pool.publish(id, &key), Ok(Published::Cached));
        id
    }

    /// Allocates a block for each key, whose token is its content, and publishes them.
    fn fill_verified(&self, keys: &[BlockKey], tokens: &[u32]) -> Vec<BlockId> {
        let mut ids = vec![0; keys.len()];
        self.pool.allocate(&mut ids).unwrap();
        ids.iter()
            .zip(tokens)
            .for_each(|(id, token)| self.write(*id, u64::from(*token)));
        self.publish_verified(&ids, keys, tokens);
        ids
    }

    fn publish_verified(&self, ids: &[BlockId], keys: &[BlockKey], tokens: &[u32]) {
        let prefix = Prefix {
            keys,
            tokens,
            group: 0,
        };
        let published = self.pool.publish_prefix(ids, prefix, 0);
        assert_eq!(published, Ok(ids.len()));
    }

    /// Takes the cached prefix, whose blocks must hold their tokens.
    fn verified_hits(&self, keys: &[BlockKey], tokens: &[u32]) -> Vec<BlockId> {
        let mut ids = vec![0; keys.len()];
        let prefix = Prefix {
            keys,
            tokens,
            group: 0,
        };
        let hits = self.pool.match_prefix(prefix, &mut ids);
        ids.truncate(hits);
        self.saw(match (hits, tokens[0]) {
            (0, 7) => "miss 7",
            (0, _) => "miss 8",
            (1, 7) => "hit 7",
            (1, _) => "hit 8",
            _ => "both blocks",
        });
        for (id, token) in ids.iter().zip(tokens) {
            assert_eq!(self.read(*id), u64::from(*token));
        }
        ids
    }

    fn use_verified_hits(&self, keys: &[BlockKey], tokens: &[u32]) {
        let ids = self.verified_hits(keys, tokens);
        self.release(&ids);
    }

    fn keep_verified_hits(&self, keys: &[BlockKey], tokens: &[u32]) {
        let ids = self.verified_hits(keys, tokens);
        self.kept.lock().unwrap().extend(ids);
    }

    /// Takes blocks, writes to them and keeps them until the race is over.
    fn keep_blocks<const N: usize>(&self) {
        let Some(ids) = self.allocate::<N>() else {
            return self.saw("none free");
        };
        self.saw("allocated");
        ids.iter().for_each(|id| self.write(*id, 0));
        self.kept.lock().unwrap().extend(ids);
    }

    /// As `keep_blocks`, but gives the blocks back at once.
    fn use_blocks<const N: usize>(&self) {
        let Some(ids) = self.allocate::<N>() else {
            return self.saw("none free");
        };
        self.saw("allocated");
        ids.iter().for_each(|id| self.write(*id, 0));
        self.release(&ids);
    }

    /// Takes the block under `key`, which must hold `value`, and gives it back.
    fn use_hit(&self, key: BlockKey, value: u64) {
        let Some(id) = self.hit(key) else {
            return self.saw("miss");
        };
        self.saw("hit");
        assert_eq!(self.read(id), value);
        self.release(&[id]);
    }

    /// As `use_hit`, but keeps the block until the race is over.
    fn keep_hit(&self, key: BlockKey, value: u64) {
        let Some(id) = self.hit(key) else {
            return self.saw("miss");
        };
        self.saw("hit");
        assert_eq!(self.read(id), value);
        self.kept.lock().unwrap().push(id);
    }

    /// Takes a table of two blocks, of which the first may be the one under `key`, which must then
    /// hold `value`, and keeps it until the race is over.
    fn keep_table(&self, key: BlockKey, value: u64) {
        let mut table = [0; 2];
        let Ok(hits) = self.pool.admit_table(&[key], &mut table) else {
            return self.saw("none free");
        };
        assert!(table[0] != table[1]);
        if hits == 1 {
            self.saw("hit");
            assert_eq!(self.read(table[0]), value);
        } else {
            self.saw("replaced");
        }
        table[hits..].iter().for_each(|id| self.write(*id, 0));
        self.kept.lock().unwrap().extend(table);
    }

    fn release(&self, ids: &[BlockId]) {
        self.pool.release(ids).unwrap();
    }

    /// The only free block was found at once: its unit told where it is.
    fn found_at_once(&self) {
        assert_eq!(self.pool.stats().short_passes, 0);
    }

    /// After all threads have finished: gives back what they kept; nothing may be lost.
    fn settled(&self) {
        self.pool.check_invariants().unwrap();
        self.kept
            .lock()
            .unwrap()
            .drain(..)
            .for_each(|id| self.release(&[id]));
        let stats = self.pool.stats();
        let rare = [
            ("moved", stats.moves),
            ("swapped", stats.role_swaps),
            ("spilled", stats.spills),
            ("looked again", stats.short_passes),
        ];
        rare.iter()
            .filter(|(_, count)| *count > 0)
            .for_each(|(name, _)| self.saw(name));
        self.pool.check_invariants().unwrap();
        assert_eq!(self.pool.num_free(), self.pool.num_usable());
        let mut all = self.pool.free_order();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..self.pool.num_blocks() as u32));
    }
}

/// Rings that are always on the move.
fn restless(young_slots: u32, aged_slots: u32) -> Tuning {
    Tuning {
        young_slots: Some(young_slots),
        aged_slots: Some(aged_slots),
        young_threshold: Some(0),
        moves_per_push: Some(1),
        lazy_close: Some(1),
        index_slots: Some(2),
        index_ways: Some(1),
    }
}

/// Rings that move nothing.
fn calm() -> Tuning {
    Tuning {
        young_threshold: Some(7),
        ..restless(8, 1)
    }
}

/// Explores the scenario and checks that exactly these outcomes can happen.
fn check(
    preemptions: usize,
    outcomes: &[&'static str],
    scenario: impl Fn(&Seen) + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    let seen = Seen::default();
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let (inside, counter) = (seen.clone(), executions.clone());
    model.check(move || {
        counter.fetch_add(1, Relaxed);
        scenario(&inside);
    });
    println!(
        "loom {}: {} executions with up to {preemptions} preemptions",
        std::thread::current().name().unwrap_or_default(),
        executions.load(Relaxed)
    );
    assert_eq!(*seen.lock().unwrap(), outcomes.iter().copied().collect());
}

/// Runs `first` on a second thread beside `second`, then checks that nothing was lost.
fn race(
    cache: Arc<Cache>,
    first: impl FnOnce(&Cache) + Send + 'static,
    second: impl FnOnce(&Cache),
) {
    let other = cache.clone();
    let thread = thread::spawn(move || first(&other));
    second(&cache);
    thread.join().unwrap();
    cache.settled();
}
