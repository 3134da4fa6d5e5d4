//! A thread that is stopped anywhere stops nobody else, and leaves nothing behind that a later
//! step of its own would not put right (INV-11).
//!
//! Run with `RUSTFLAGS="--cfg crash_stop" cargo test -p looseleaf --test crash_stop -- --show-output`.
//! Each scenario is two or three threads that meet in one race on a tiny pool. Each of them in turn
//! is the victim, stopped after its k-th atomic access, for every k until it finishes before; all
//! that under as many seeds as `CRASH_STOP_SEEDS` says, which decide how the threads take turns.
//!
//! - At every access of every run, what must hold at each instant is checked (INV-2, INV-4, INV-5).
//! - While the victim is stopped the others come to an end in a bounded number of accesses, and
//!   then every block that counts as free is handed out, and each hit has its content.
//! - Then the victim goes on, and in the end nothing may be missing.
#![cfg(crash_stop)]

mod bounded_work;
mod free_blocks;
#[path = "../ledger/mod.rs"]
mod ledger;
mod prefix_cache;
mod random_scripts;
mod rings;

use std::sync::Arc;

use ledger::{Ledger, Tally, Worker};
use looseleaf::crash_stop::{self, Plan, Script, Stop, Watch};
use looseleaf::{DuplicatePolicy, FreeOrder, PoolConfig, Tuning};

/// Several times what the longest script needs, and nothing beside an endless loop.
const MOST_ACCESSES: u64 = 5_000;

/// A pool with its history, and the threads that will meet in it.
struct Scenario {
    ledger: Arc<Ledger>,
    scripts: Vec<Script>,
}

impl Scenario {
    fn new(ledger: &Arc<Ledger>) -> Self {
        let ledger = ledger.clone();
        let scripts = vec![];
        Self { ledger, scripts }
    }

    /// One more thread, which leaves what it holds in the end to the ledger.
    fn thread(
        mut self,
        mut worker: Worker,
        act: impl FnOnce(&mut Worker) + Send + 'static,
    ) -> Self {
        self.scripts.push(Box::new(move || {
            act(&mut worker);
            worker.leave();
        }));
        self
    }
}

fn seeds() -> u64 {
    const QUICK: u64 = 4;
    std::env::var("CRASH_STOP_SEEDS").map_or(QUICK, |seeds| seeds.parse().unwrap())
}

/// Tries every stop point of every thread of the scenario, on each pool and with each seed. Returns
/// what happened before the victims went on, so that no scenario can silently miss its race.
fn sweep(
    name: &str,
    pools: &[PoolConfig],
    scenario: impl Fn(PoolConfig, u64) -> Scenario,
) -> Tally {
    let mut tally = Tally::default();
    let (mut points, mut runs, mut accesses, mut longest) = (0, 0, 0, 0);
    for pool in pools {
        let threads = scenario(*pool, 0).scripts.len();
        for (victim, seed) in (0..threads).flat_map(|id| (0..seeds()).map(move |seed| (id, seed))) {
            for after in 0.. {
                let plan = Plan {
                    seed,
                    stop: Some(Stop { victim, after }),
                    most_accesses: MOST_ACCESSES,
                };
                let outcome = stop_once(name, plan, scenario(*pool, seed), &mut tally);
                runs += 1;
                points += u64::from(outcome.stopped);
                accesses += outcome.accesses;
                longest = longest.max(outcome.longest);
                if !outcome.stopped {
                    break;
                }
            }
        }
    }
    let (pools, seeds) = (pools.len(), seeds());
    println!(
        "crash_stop {name}: {points} stop points in {seeds} schedules on each of {pools} pools, \
         {runs} runs, {accesses} accesses, at most {longest} by one thread"
    );
    tally
}

fn stop_once(name: &str, plan: Plan, scenario: Scenario, tally: &mut Tally) -> crash_stop::Outcome {
    let Scenario { ledger, scripts } = scenario;
    let _context = Context { name, plan };
    let before = Tally::of(&ledger);
    let watched = ledger.clone();
    let watch: Watch = Arc::new(move || watched.assert_instant());
    let outcome = crash_stop::run(plan, scripts, watch, || {
        tally.add_since(&before, &Tally::of(&ledger));
        use_what_is_free(&ledger, plan.seed);
    });
    ledger.settle();
    outcome
}

/// While the victim is stopped: each hit has its content, and what counts as free can be had.
fn use_what_is_free(ledger: &Arc<Ledger>, seed: u64) {
    let (look_first, give_back) = (seed & 1 != 0, seed & 2 != 0);
    let mut worker = ledger.worker(99);
    // A hit queues its block anew when it is released, and so mends what a lost entry has broken.
    if look_first {
        for code in 0..ledger.num_keys {
            worker.hit(code);
        }
        worker.release_all();
    }
    worker.allocate_all_free();
    ledger.assert_no_block_counts_twice();
    // The victim goes on with a pool that has blocks again, or with an empty one.
    if give_back {
        worker.release_all();
    }
    worker.leave();
}

/// Says which run failed.
struct Context<'a> {
    name: &'a str,
    plan: Plan,
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {:?}", self.name, self.plan);
        }
    }
}

/// Pools of this many usable blocks, in both orders.
fn both_orders(usable: u32, tuning: Tuning) -> [PoolConfig; 2] {
    [FreeOrder::UnhashedFirst, FreeOrder::AppendAll].map(|free_order| PoolConfig {
        free_order,
        tuning,
        ..PoolConfig::new(usable + 1)
    })
}

fn keep_all(pool: PoolConfig) -> PoolConfig {
    PoolConfig {
        duplicate_policy: DuplicatePolicy::KeepAll,
        ..pool
    }
}

/// Rings of these sizes that are always on the move.
fn restless(young_slots: u32, aged_slots: u32) -> Tuning {
    Tuning {
        young_slots: Some(young_slots),
        aged_slots: Some(aged_slots),
        young_threshold: Some(0),
        moves_per_push: Some(2),
        lazy_close: Some(1),
        ..Tuning::default()
    }
}

/// A worker that holds a block for each code, published under it.
fn publisher(ledger: &Arc<Ledger>, me: u64, codes: &[u64]) -> Worker {
    let mut worker = ledger.worker(me);
    for code in codes {
        assert!(worker.allocate(1));
        worker.publish(*code);
    }
    worker
}

/// Leaves a free block for each code, published under it, the first to be evicted first.
fn cache(ledger: &Arc<Ledger>, codes: &[u64]) {
    let mut workers: Vec<_> = codes
        .iter()
        .map(|code| publisher(ledger, 9, &[*code]))
        .collect();
    workers.iter_mut().for_each(Worker::release_all);
}
