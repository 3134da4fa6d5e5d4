//! Every interleaving and every legal memory order, for one race at a time.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p looseleaf --release --test loom_pool`. Pools have
//! one to four blocks and rings of one or two slots, so that each scenario meets its race at once.
//! The first argument of `check` bounds how often a thread is interrupted where it could have gone
//! on; the second names all outcomes that must be met, so that a scenario cannot silently miss its
//! race.
//!
//! Blocks have a payload in loom's `UnsafeCell`, which fails the model if two accesses are not
//! ordered by what the pool does: this is what tests the memory orderings (INV-14).
#![cfg(loom)]

use std::collections::BTreeSet;
use std::sync::Mutex;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use looseleaf::{
    BlockId, BlockKey, BlockPool, DuplicatePolicy, FreeOrder, KeyWidth, PoolConfig, Published,
    Tuning,
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
        let config = PoolConfig {
            reserve_null_block: false,
            free_order,
            duplicate_policy: DuplicatePolicy::FirstWins,
            key_width: KeyWidth::Bits128,
            tuning,
            num_blocks,
        };
        Arc::new(Self {
            seen: seen.clone(),
            kept: Mutex::default(),
            pool: BlockPool::new(config).unwrap(),
            payload: (0..num_blocks).map(|_| UnsafeCell::new(0)).collect(),
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
    let inside = seen.clone();
    model.check(move || scenario(&inside));
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

#[test]
fn stack_pop_against_batch_push() {
    check(2, &["allocated", "none free"], |seen| {
        let cache = Cache::new(seen, 3, FreeOrder::UnhashedFirst, calm());
        race(cache, Cache::use_blocks::<2>, |cache| {
            cache.use_blocks::<1>();
            cache.use_blocks::<2>();
        });
    });
}

#[test]
fn stack_pop_against_a_top_that_leaves_and_comes_back() {
    check(3, &["allocated"], |seen| {
        let cache = Cache::new(seen, 3, FreeOrder::UnhashedFirst, calm());
        race(cache, Cache::keep_blocks::<1>, |cache| {
            let [first, second] = cache.allocate().unwrap();
            cache.release(&[first]);
            cache.kept.lock().unwrap().push(second);
        });
    });
}

#[test]
fn stack_pop_through_a_block_just_pushed() {
    check(3, &["allocated"], |seen| {
        let cache = Cache::new(seen, 3, FreeOrder::UnhashedFirst, calm());
        let [first, second, third] = cache.allocate().unwrap();
        // So that the link that `first` gets differs from the one it had.
        cache.release(&[second]);
        cache.release(&[third]);
        race(cache, Cache::keep_blocks::<2>, move |cache| {
            cache.release(&[first])
        });
    });
}

#[test]
fn ring_push_against_scan() {
    check(3, &["allocated"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, calm());
        let ids = cache.allocate::<2>().unwrap();
        cache.release(&ids[..1]);
        race(cache, Cache::keep_blocks::<1>, move |cache| {
            cache.write(ids[1], 2);
            cache.release(&ids[1..]);
        });
    });
}

#[test]
fn a_push_overtaken_by_another_is_scanned_past() {
    check(2, &["allocated"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, calm());
        let ids = cache.allocate::<2>().unwrap();
        race(
            cache,
            move |cache| cache.release(&ids[..1]),
            move |cache| {
                cache.release(&ids[1..]);
                cache.keep_blocks::<1>();
            },
        );
    });
}

#[test]
fn claim_of_a_batch_against_scan() {
    check(2, &["allocated", "none free"], |seen| {
        let cache = Cache::new(seen, 4, FreeOrder::AppendAll, calm());
        cache.use_blocks::<4>();
        race(cache, Cache::keep_blocks::<4>, Cache::keep_blocks::<1>);
    });
}

#[test]
fn touch_against_allocate() {
    check(3, &["allocated", "hit", "miss", "none free"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        cache.release(&[id]);
        race(
            cache,
            |cache| cache.keep_hit(KEY, 7),
            Cache::keep_blocks::<2>,
        );
    });
}

#[test]
fn two_touches_of_one_block() {
    check(3, &["hit", "miss"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        cache.release(&[id]);
        race(
            cache,
            |cache| cache.keep_hit(KEY, 7),
            |cache| cache.keep_hit(KEY, 7),
        );
    });
}

#[test]
fn release_against_allocate_hands_the_payload_over() {
    for published in [false, true] {
        check(3, &["allocated", "none free"], move |seen| {
            let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
            let [id] = cache.allocate().unwrap();
            let other = cache.clone();
            race(cache, Cache::keep_blocks::<1>, move |cache| {
                cache.write(id, 1);
                if published {
                    assert_eq!(cache.pool.publish(id, &KEY), Ok(Published::Cached));
                }
                cache.release(&[id]);
            });
            other.found_at_once();
        });
    }
}

#[test]
fn the_last_of_two_holders_hands_over_what_both_did() {
    check(3, &["allocated", "none free"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let [id] = cache.allocate().unwrap();
        cache.pool.share(&[id]).unwrap();
        let leave = move |cache: &Cache| {
            cache.read(id);
            cache.release(&[id]);
        };
        race(cache, leave, move |cache| {
            leave(cache);
            cache.use_blocks::<1>();
        });
    });
}

#[test]
fn publish_against_lookup() {
    check(3, &["hit", "miss"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let [id] = cache.allocate().unwrap();
        race(
            cache,
            |cache| cache.use_hit(KEY, 7),
            move |cache| {
                cache.write(id, 7);
                assert_eq!(cache.pool.publish(id, &KEY), Ok(Published::Cached));
                cache.release(&[id]);
            },
        );
    });
}

#[test]
fn retract_and_publish_anew_against_lookup() {
    check(3, &["hit", "miss", "rewritten"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        race(
            cache,
            |cache| cache.keep_hit(KEY, 7),
            move |cache| {
                if cache.pool.retract(id).unwrap() && cache.pool.is_writable(id) {
                    cache.saw("rewritten");
                    cache.write(id, 8);
                    assert_eq!(cache.pool.publish(id, &OTHER), Ok(Published::Cached));
                }
                cache.kept.lock().unwrap().push(id);
            },
        );
    });
}

#[test]
fn eviction_against_lookup_of_the_next_tenant() {
    check(3, &["hit", "miss"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        cache.release(&[id]);
        race(
            cache,
            |cache| cache.use_hit(OTHER, 8),
            |cache| {
                let id = cache.fill(OTHER, 8);
                cache.release(&[id]);
            },
        );
    });
}

#[test]
fn two_retractions_of_one_block() {
    check(3, &["retracted once"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        let other = cache.clone();
        let thread = thread::spawn(move || other.pool.retract(id).unwrap());
        let ours = cache.pool.retract(id).unwrap();
        assert!(ours != thread.join().unwrap());
        cache.saw("retracted once");
        cache.release(&[id]);
        cache.settled();
    });
}

#[test]
fn of_two_allocations_over_capacity_one_takes_all_and_one_takes_nothing() {
    check(3, &["ours", "theirs"], |seen| {
        let cache = Cache::new(seen, 3, FreeOrder::UnhashedFirst, calm());
        let other = cache.clone();
        let thread = thread::spawn(move || other.allocate::<2>());
        let ours = cache.allocate::<2>();
        let theirs = thread.join().unwrap();
        assert!(ours.is_some() != theirs.is_some());
        assert_eq!(cache.pool.num_free(), 1);
        cache.saw(if ours.is_some() { "ours" } else { "theirs" });
        cache.release(&ours.or(theirs).unwrap());
        cache.settled();
    });
}

#[test]
fn a_sharer_leaves_while_the_owner_asks_whether_it_may_write() {
    check(3, &["shared", "writable"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let [id] = cache.allocate().unwrap();
        cache.pool.share(&[id]).unwrap();
        race(
            cache,
            move |cache| {
                cache.read(id);
                cache.release(&[id]);
            },
            move |cache| {
                if cache.pool.is_writable(id) {
                    cache.saw("writable");
                    cache.write(id, 1);
                } else {
                    cache.saw("shared");
                }
                cache.release(&[id]);
            },
        );
    });
}

#[test]
fn of_two_publishers_of_a_block_one_wins() {
    check(3, &["ours", "theirs"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let [id] = cache.allocate().unwrap();
        cache.pool.share(&[id]).unwrap();
        let other = cache.clone();
        let thread = thread::spawn(move || other.pool.publish(id, &KEY).is_ok());
        let ours = cache.pool.publish(id, &OTHER).is_ok();
        let theirs = thread.join().unwrap();
        assert!(ours != theirs);
        assert_eq!(cache.pool.key_of(id), Some(if ours { OTHER } else { KEY }));
        cache.saw(if ours { "ours" } else { "theirs" });
        cache.release(&[id]);
        cache.release(&[id]);
        cache.settled();
    });
}

#[test]
fn mover_against_allocate() {
    check(2, &["allocated", "moved"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, restless(2, 2));
        let ids = cache.allocate::<2>().unwrap();
        cache.release(&ids[..1]);
        race(cache, Cache::keep_blocks::<1>, move |cache| {
            cache.release(&ids[1..])
        });
    });
}

#[test]
fn mover_against_a_push_that_is_not_written_yet() {
    check(2, &["moved"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, restless(2, 2));
        let ids = cache.allocate::<2>().unwrap();
        race(
            cache,
            move |cache| cache.release(&ids[..1]),
            move |cache| cache.release(&ids[1..]),
        );
    });
}

#[test]
fn role_swap_against_scan() {
    check(2, &["allocated", "moved", "swapped"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, restless(1, 1));
        let ids = cache.allocate::<2>().unwrap();
        // Leaves old empty but still to be drained, and young full: the next push swaps.
        cache.release(&ids);
        assert_eq!(cache.allocate(), Some([ids[0]]));
        race(cache, Cache::keep_blocks::<1>, move |cache| {
            cache.release(&ids[..1])
        });
    });
}

#[test]
fn spill_against_lookup() {
    check(2, &["hit", "miss", "moved", "spilled", "swapped"], |seen| {
        let tuning = Tuning {
            index_slots: Some(8),
            index_ways: Some(2),
            ..restless(1, 1)
        };
        let cache = Cache::new(seen, 4, FreeOrder::UnhashedFirst, tuning);
        let fillers = [BlockKey([5, 0, 0, 0]), BlockKey([6, 0, 0, 0]), OTHER];
        let filled = fillers.map(|key| cache.fill(key, 1));
        let last = cache.fill(KEY, 7);
        filled.iter().for_each(|id| cache.release(&[*id]));
        race(
            cache,
            |cache| cache.keep_hit(KEY, 7),
            move |cache| cache.release(&[last]),
        );
    });
}
