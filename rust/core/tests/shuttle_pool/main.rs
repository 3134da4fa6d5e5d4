//! Long random schedules of several threads, explored by shuttle.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p looseleaf --test shuttle_pool -- --show-output`.
//! Each iteration builds a tiny pool and lets three or four threads make fifty random calls each.
//! `SHUTTLE_ITERATIONS` says how many iterations each scheduler gets on each pool, `SHUTTLE_SEED`
//! where their random numbers start. A failing run prints a schedule for `shuttle::replay`.
//!
//! Where loom takes two threads through every order of one race, this takes more threads through
//! few of the orders of everything: it finds what scenarios forgot, and says nothing about memory
//! orders, as shuttle knows only sequential consistency.
#![cfg(shuttle)]

#[path = "../ledger/mod.rs"]
mod ledger;

use std::sync::{Arc, Mutex};

use ledger::{Ledger, Rng, Tally};
use looseleaf::{DuplicatePolicy, FreeOrder, PoolConfig, Tuning};
use shuttle::rand::RngCore;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

const CALLS: u64 = 50;
const NUM_KEYS: u64 = 5;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn iterations() -> usize {
    from_environment("SHUTTLE_ITERATIONS", 2000) as usize
}

fn seed() -> u64 {
    from_environment("SHUTTLE_SEED", 1)
}

/// Both duplicate policies, on rings of four slots and on rings that cannot hold all blocks.
fn pools(free_order: FreeOrder) -> Vec<PoolConfig> {
    let tuning = |slots| Tuning {
        young_slots: Some(slots),
        aged_slots: Some(slots),
        young_threshold: Some(1),
        moves_per_push: Some(2),
        lazy_close: Some(2),
        // Too few for all keys, in buckets of two.
        index_slots: Some(4),
        index_ways: Some(2),
    };
    let pool = |num_blocks, slots, duplicate_policy| PoolConfig {
        free_order,
        duplicate_policy,
        tuning: tuning(slots),
        ..PoolConfig::new(num_blocks)
    };
    let policies = [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll];
    let both = |policy| [pool(6, 4, policy), pool(9, 2, policy)];
    policies.into_iter().flat_map(both).collect()
}

fn one_iteration(config: PoolConfig) -> Tally {
    let ledger = Ledger::new(config, NUM_KEYS);
    let threads = 3 + shuttle::rand::thread_rng().next_u64() % 2;
    let start = |me| {
        let mut worker = ledger.worker(me);
        let mut rng = Rng(shuttle::rand::thread_rng().next_u64() | 1);
        thread::spawn(move || {
            for _ in 0..CALLS {
                worker.make_random_call(&mut rng);
                worker.ledger.assert_no_block_counts_twice();
            }
            worker.leave();
        })
    };
    let threads: Vec<_> = (0..threads).map(start).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    ledger.settle();
    Tally::of(&ledger)
}

/// Runs every pool under every scheduler, and checks that the rare branches were taken.
fn explore<S: Scheduler + 'static>(
    name: &str,
    free_order: FreeOrder,
    schedulers: &[&dyn Fn() -> S],
) {
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut executions = 0;
    for config in pools(free_order) {
        for scheduler in schedulers {
            let mut limits = Config::new();
            limits.stack_size = 1 << 18;
            // Ten times what is needed: to run longer is to go round in circles (INV-11).
            limits.max_steps = MaxSteps::FailAfter(500_000);
            // The warning says that other orders than sequential consistency are not explored.
            limits.silence_warnings = true;
            let tally = tally.clone();
            executions += Runner::new(scheduler(), limits)
                .run(move || tally.lock().unwrap().add(&one_iteration(config)));
        }
    }
    let tally = tally.lock().unwrap();
    println!(
        "shuttle {name}, {free_order:?}: {executions} executions from seed {}, {tally:?}",
        seed()
    );
    tally.assert_happened(&[
        "none free",
        "hit",
        "miss",
        "rewritten",
        "duplicate",
        "evicted",
        "retracted",
        "reset",
        "spilled",
        "overflowed",
        "looked again",
        "moved",
        "swapped",
    ]);
}

fn explore_at_random(free_order: FreeOrder) {
    let scheduler = || RandomScheduler::new_from_seed(seed(), iterations());
    explore("at random", free_order, &[&scheduler]);
}

/// Probabilistic concurrency testing: threads run by priority, which changes at few places. Finds
/// what needs a thread to be held up for long at one particular place.
fn explore_by_priorities(free_order: FreeOrder) {
    let few = || PctScheduler::new_from_seed(seed(), 3, iterations());
    let many = || PctScheduler::new_from_seed(seed(), 30, iterations());
    explore("by priorities", free_order, &[&few, &many]);
}

#[test]
fn unhashed_first_keeps_its_promises_under_random_schedules() {
    explore_at_random(FreeOrder::UnhashedFirst);
}

#[test]
fn append_all_keeps_its_promises_under_random_schedules() {
    explore_at_random(FreeOrder::AppendAll);
}

#[test]
fn unhashed_first_keeps_its_promises_when_threads_are_held_up() {
    explore_by_priorities(FreeOrder::UnhashedFirst);
}

#[test]
fn append_all_keeps_its_promises_when_threads_are_held_up() {
    explore_by_priorities(FreeOrder::AppendAll);
}
