//! Real threads on tiny pools: the ledger watches that no block has two exclusive owners (INV-1),
//! that a hit holds the content it was found by (INV-5), and that nothing is lost (INV-2); the
//! counters show that the rare branches were taken on the way.
#![cfg(not(any(loom, shuttle)))]

mod ledger;

use std::sync::Barrier;

use ledger::{Ledger, Rng, Tally, key};
use looseleaf::{BlockPool, DuplicatePolicy, FreeOrder, PoolConfig, PoolError, Tuning};

const THREADS: u64 = 4;
const ROUNDS: u64 = 60_000;
const NUM_KEYS: u64 = 12;

fn stress(config: PoolConfig) -> Tally {
    let ledger = Ledger::new(config, NUM_KEYS);
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (ledger, start) = (&ledger, &start);
            scope.spawn(move || {
                let mut worker = ledger.worker(me);
                let mut rng = Rng(0x2545_F491_4F6C_DD1D ^ (me + 1));
                start.wait();
                for _ in 0..ROUNDS {
                    worker.make_random_call(&mut rng);
                }
                worker.leave();
            });
        }
    });
    ledger.settle();
    Tally::of(&ledger)
}

/// Pools of this many blocks, in both orders and with both policies.
fn pools(num_blocks: u32) -> Vec<PoolConfig> {
    let tuning = Tuning {
        young_slots: Some(4),
        // Too few for all blocks, so that releases spill.
        aged_slots: Some(num_blocks / 2 + 1),
        young_threshold: Some(1),
        lazy_close: Some(2),
        // Two buckets a key of two slots each, so that keys crowd each other out.
        index_slots: Some(num_blocks),
        index_ways: Some(2),
        ..Tuning::default()
    };
    let config = PoolConfig {
        tuning,
        ..PoolConfig::new(num_blocks)
    };
    let orders = [FreeOrder::UnhashedFirst, FreeOrder::AppendAll];
    let policies = [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll];
    let pool = |free_order, duplicate_policy| PoolConfig {
        free_order,
        duplicate_policy,
        ..config
    };
    let pools = orders.map(|order| policies.map(|policy| pool(order, policy)));
    pools.into_iter().flatten().collect()
}

#[test]
fn no_block_is_lost_or_given_twice_and_the_rare_branches_happen() {
    let mut tally = Tally::default();
    for num_blocks in [5, 12, 40] {
        for config in pools(num_blocks) {
            tally.add(&stress(config));
        }
    }
    println!("stress {tally:?}");
    tally.assert_at_least(1000, &["moved", "evicted", "hit", "none free", "duplicate"]);
    tally.assert_at_least(
        100,
        &["swapped", "spilled", "overflowed", "rewritten", "retracted"],
    );
}

#[test]
fn of_two_calls_that_release_one_reference_one_succeeds() {
    let pool = BlockPool::new(PoolConfig::new(4)).unwrap();
    for round in 0..20_000_u64 {
        let mut ids = [0];
        pool.allocate(&mut ids).unwrap();
        if round % 2 == 0 {
            pool.publish(ids[0], &key(round)).unwrap();
        }
        let start = Barrier::new(2);
        let results = std::thread::scope(|scope| {
            let release = || {
                start.wait();
                pool.release(&ids)
            };
            let other = scope.spawn(release);
            [release(), other.join().unwrap()]
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(results.contains(&Err(PoolError::DoubleRelease { id: ids[0] })));
        if round % 1000 == 0 {
            pool.check_invariants().unwrap();
        }
    }
}
