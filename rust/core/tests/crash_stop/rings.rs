//! Entries that move while others push, scan and look up.

use looseleaf::Tuning;

use crate::ledger::Ledger;
use crate::{Scenario, both_orders, cache, publisher, restless, sweep};

#[test]
fn a_stopped_mover_hides_no_block() {
    let [a, b] = both_orders(4, restless(2, 4));
    let [c, d] = both_orders(4, restless(4, 4));
    sweep("mover", &[a, b, c, d], |pool, _| {
        let ledger = Ledger::new(pool, 4);
        let givers = [publisher(&ledger, 0, &[1, 2]), publisher(&ledger, 1, &[3])];
        cache(&ledger, &[0]);
        let [first, second] = givers;
        Scenario::new(&ledger)
            .thread(first, |worker| worker.release_all())
            .thread(second, |worker| worker.release_all())
            .thread(ledger.worker(2), |worker| {
                worker.hit(0);
                worker.allocate(1);
                worker.release_all();
            })
    })
    .assert_happened(&["moved", "allocated", "hit"]);
}

#[test]
fn a_stopped_role_swap_hides_no_block() {
    let pools = both_orders(3, restless(1, 2));
    sweep("role swap", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 3);
        let giver = publisher(&ledger, 0, &[2]);
        // Old is full, and half of it dead: the next pushes drain it and swap.
        cache(&ledger, &[0, 1]);
        let mut holder = ledger.worker(1);
        holder.hit(0);
        Scenario::new(&ledger)
            .thread(giver, |worker| worker.release_all())
            .thread(holder, |worker| {
                worker.release_all();
                worker.hit(1);
                worker.release_all();
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(1);
            })
    })
    .assert_happened(&["moved", "swapped", "allocated", "hit"]);
}

#[test]
fn a_stopped_spill_loses_hashes_and_no_block() {
    let overflowing = Tuning {
        moves_per_push: Some(1),
        ..restless(1, 1)
    };
    let pools = both_orders(4, overflowing);
    sweep("release with spill", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 5);
        let first = publisher(&ledger, 0, &[0]);
        let second = publisher(&ledger, 1, &[1]);
        cache(&ledger, &[2, 3]);
        Scenario::new(&ledger)
            .thread(first, |worker| worker.release_all())
            .thread(second, |worker| worker.release_all())
            .thread(ledger.worker(2), |worker| {
                worker.hit(1);
                worker.release_all();
                worker.hit(2);
                worker.allocate(1);
            })
    })
    .assert_happened(&["spilled", "hit", "miss", "allocated"]);
}
