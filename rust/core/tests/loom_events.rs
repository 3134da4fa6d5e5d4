//! Events, in every interleaving and legal memory order of small races (INV-13).
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p looseleaf --release --test loom_events`. Rings
//! have one or two slots. Whatever happens meanwhile, a drain after the race leaves its reader with
//! what is resident; and the events of a drain during the race make sense for a set. As in
//! `loom_pool`, each scenario names the outcomes that must be met.
#![cfg(loom)]

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::sync::Arc;
use loom::thread;
use looseleaf::{
    BlockId, BlockKey, BlockPool, DuplicatePolicy, Event, EventReader, KeyWidth, PoolConfig,
    Published, Tuning,
};

const KEY: BlockKey = BlockKey([1, 2, 0, 0]);
const OTHER: BlockKey = BlockKey([3, 4, 0, 0]);

/// What happened in the executions of one scenario. Kept outside the model.
type Seen = std::sync::Arc<Mutex<BTreeSet<&'static str>>>;

fn check(
    preemptions: usize,
    outcomes: &[&'static str],
    scenario: impl Fn(&Seen) + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 20_000;
    let seen = Seen::default();
    let inside = seen.clone();
    model.check(move || scenario(&inside));
    assert_eq!(*seen.lock().unwrap(), outcomes.iter().copied().collect());
}

fn pool(num_blocks: u32, event_capacity: u32) -> Arc<BlockPool> {
    let config = PoolConfig {
        reserve_null_block: false,
        duplicate_policy: DuplicatePolicy::KeepAll,
        key_width: KeyWidth::Bits128,
        event_capacity,
        tuning: Tuning {
            young_slots: Some(8),
            aged_slots: Some(1),
            young_threshold: Some(7),
            moves_per_push: Some(1),
            lazy_close: Some(1),
            index_slots: Some(4),
            index_ways: Some(2),
        },
        ..PoolConfig::new(num_blocks)
    };
    Arc::new(BlockPool::new(config).unwrap())
}

fn allocate<const N: usize>(pool: &BlockPool) -> [BlockId; N] {
    let mut ids = [0; N];
    pool.allocate(&mut ids).unwrap();
    ids
}

fn publish(pool: &BlockPool, id: BlockId, key: BlockKey) {
    assert_eq!(pool.publish(id, &key), Ok(Published::Cached));
}

/// The reader, and the set that it was told of.
struct Listener<'p> {
    seen: &'p Seen,
    reader: EventReader<&'p BlockPool>,
    resident: BTreeSet<BlockKey>,
}

impl<'p> Listener<'p> {
    fn new(seen: &'p Seen, pool: &'p BlockPool) -> Self {
        Self {
            seen,
            reader: EventReader::new(pool).unwrap(),
            resident: BTreeSet::new(),
        }
    }

    fn drain(&mut self) {
        let mut events = vec![];
        self.reader.drain(&mut events);
        for event in events {
            let outcome = match event {
                Event::Stored { key, .. } => {
                    assert!([KEY, OTHER].contains(&key), "a mix of two keys");
                    assert!(self.resident.insert(key), "stored twice");
                    "stored"
                }
                Event::Removed { key, .. } => {
                    assert!(self.resident.remove(&key), "removed before it was stored");
                    "removed"
                }
                Event::Cleared { resync } => {
                    self.resident.clear();
                    if resync { "resync" } else { "reset" }
                }
            };
            self.seen.lock().unwrap().insert(outcome);
        }
    }

    /// After all threads have finished.
    fn settled(mut self, pool: &BlockPool) {
        self.drain();
        let keys = (0..pool.num_blocks() as u32).filter_map(|id| pool.key_of(id));
        assert_eq!(self.resident, keys.collect());
        pool.check_invariants().unwrap();
    }
}

/// Two threads work while this one drains.
fn race(
    seen: &Seen,
    pool: Arc<BlockPool>,
    drains: usize,
    first: impl FnOnce(&BlockPool) + Send + 'static,
    second: impl FnOnce(&BlockPool) + Send + 'static,
) {
    let mut listener = Listener::new(seen, &pool);
    // What led to the scenario is not part of it.
    listener.drain();
    let (one, other) = (pool.clone(), pool.clone());
    let threads = [
        thread::spawn(move || first(&one)),
        thread::spawn(move || second(&other)),
    ];
    (0..drains).for_each(|_| listener.drain());
    threads.into_iter().for_each(|it| it.join().unwrap());
    listener.settled(&pool);
}

#[test]
fn two_writers_and_a_reader_on_a_ring_of_two() {
    check(2, &["stored"], |seen| {
        let pool = pool(2, 2);
        let [a, b] = allocate(&pool);
        race(
            seen,
            pool,
            1,
            move |pool| publish(pool, a, KEY),
            move |pool| publish(pool, b, OTHER),
        );
    });
}

#[test]
fn two_writers_that_find_the_ring_full() {
    check(2, &["resync", "stored"], |seen| {
        let pool = pool(2, 1);
        let [a, b] = allocate(&pool);
        race(
            seen,
            pool,
            1,
            move |pool| publish(pool, a, KEY),
            move |pool| publish(pool, b, OTHER),
        );
    });
}

#[test]
fn a_stranger_retracts_at_once() {
    check(3, &["removed", "stored"], |seen| {
        let pool = pool(1, 2);
        let [id] = allocate(&pool);
        race(
            seen,
            pool,
            1,
            move |pool| publish(pool, id, KEY),
            move |pool| {
                pool.retract(id).unwrap();
            },
        );
    });
}

#[test]
fn a_stranger_retracts_and_the_owner_publishes_anew() {
    check(2, &["removed", "resync", "stored"], |seen| {
        let pool = pool(1, 2);
        let [id] = allocate(&pool);
        publish(&pool, id, KEY);
        race(
            seen,
            pool,
            1,
            move |pool| {
                pool.retract(id).unwrap();
            },
            move |pool| {
                pool.retract(id).unwrap();
                publish(pool, id, OTHER);
            },
        );
    });
}

#[test]
fn publish_against_eviction() {
    check(2, &["removed", "stored"], |seen| {
        let pool = pool(2, 4);
        let [a, b] = allocate(&pool);
        publish(&pool, a, KEY);
        pool.release(&[a]).unwrap();
        race(
            seen,
            pool,
            1,
            move |pool| publish(pool, b, KEY),
            |pool| {
                allocate::<1>(pool);
            },
        );
    });
}

/// The next tenant of a block publishes while the reader starts over.
#[test]
fn eviction_and_the_next_tenant_against_a_reader_that_starts_over() {
    check(2, &["removed", "resync", "stored"], |seen| {
        let pool = pool(1, 2);
        let [id] = allocate(&pool);
        publish(&pool, id, KEY);
        pool.release(&[id]).unwrap();
        let mut listener = Listener::new(seen, &pool);
        let other = pool.clone();
        let thread = thread::spawn(move || {
            let [id] = allocate(&other);
            publish(&other, id, OTHER);
            other.retract(id).unwrap();
            publish(&other, id, KEY);
        });
        listener.drain();
        listener.drain();
        thread.join().unwrap();
        listener.settled(&pool);
    });
}

/// A block gets its next hash while the reader, which must start over, reads the one before.
#[test]
fn a_hash_that_is_replaced_while_it_is_read() {
    check(2, &["resync", "stored"], |seen| {
        let pool = pool(1, 1);
        let [id] = allocate(&pool);
        publish(&pool, id, OTHER);
        pool.retract(id).unwrap();
        publish(&pool, id, KEY);
        let mut listener = Listener::new(seen, &pool);
        let other = pool.clone();
        let thread = thread::spawn(move || {
            other.retract(id).unwrap();
            publish(&other, id, OTHER);
        });
        listener.drain();
        thread.join().unwrap();
        listener.settled(&pool);
    });
}

#[test]
fn a_reset_against_a_reader() {
    check(3, &["reset", "stored"], |seen| {
        let pool = pool(1, 2);
        let [id] = allocate(&pool);
        publish(&pool, id, KEY);
        pool.release(&[id]).unwrap();
        let mut listener = Listener::new(seen, &pool);
        let other = pool.clone();
        let thread = thread::spawn(move || {
            other.reset_prefix_cache().unwrap();
            let [id] = allocate(&other);
            publish(&other, id, OTHER);
        });
        listener.drain();
        listener.drain();
        thread.join().unwrap();
        listener.settled(&pool);
    });
}
