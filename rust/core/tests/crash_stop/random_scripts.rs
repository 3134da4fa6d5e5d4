//! Whatever nobody has thought of: threads that make random calls.

use looseleaf::{PoolConfig, Tuning};

use crate::ledger::{Ledger, Rng};
use crate::{Scenario, both_orders, keep_all, restless, sweep};

#[test]
fn a_thread_stopped_in_any_of_its_random_calls_stops_nobody() {
    let tuning = Tuning {
        index_slots: Some(8),
        index_ways: Some(2),
        ..restless(1, 2)
    };
    let [a, b] = both_orders(6, tuning);
    let pools: [PoolConfig; 4] = [a, b, keep_all(a), keep_all(b)];
    sweep("random scripts", &pools, |pool, seed| {
        let ledger = Ledger::new(pool, 4);
        let mut scenario = Scenario::new(&ledger);
        for me in 0..3 {
            let mut rng = Rng(seed * 4 + me + 1);
            let mut worker = ledger.worker(me);
            // A history, so that there is something to meet.
            (0..30).for_each(|_| worker.make_random_call(&mut rng));
            scenario = scenario.thread(worker, move |worker| {
                (0..8).for_each(|_| worker.make_random_call(&mut rng));
            });
        }
        scenario
    })
    .assert_happened(&[
        "hit",
        "miss",
        "none free",
        "evicted",
        "moved",
        "swapped",
        "spilled",
    ]);
}
