//! Handing blocks out and taking them back.

use looseleaf::Tuning;

use crate::ledger::Ledger;
use crate::{Scenario, both_orders, cache, publisher, restless, sweep};

#[test]
fn a_stopped_allocation_or_release_stops_nobody() {
    let [a, b] = both_orders(4, restless(4, 4));
    let [c, d] = both_orders(4, Tuning::default());
    sweep("allocate and release", &[a, b, c, d], |pool, _| {
        let ledger = Ledger::new(pool, 1);
        let mut giver = publisher(&ledger, 0, &[0]);
        giver.allocate(2);
        Scenario::new(&ledger)
            .thread(giver, |worker| worker.release_all())
            .thread(ledger.worker(1), |worker| {
                worker.allocate(2);
                worker.release_all();
                worker.allocate(1);
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(1);
                worker.release_all();
                worker.allocate(3);
            })
    })
    .assert_happened(&["allocated", "none free"]);
}

#[test]
fn a_stopped_pop_or_push_leaves_the_stack_whole() {
    let pools = both_orders(4, restless(2, 4));
    sweep("pop and push of batches", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 1);
        let mut giver = ledger.worker(0);
        giver.allocate(2);
        Scenario::new(&ledger)
            .thread(giver, |worker| {
                worker.release_from(1);
                worker.release_all();
            })
            .thread(ledger.worker(1), |worker| {
                worker.allocate(2);
                // The top leaves and comes back above another block.
                worker.release_from(1);
                worker.allocate(1);
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(2);
            })
    })
    .assert_happened(&["allocated", "none free"]);
}

#[test]
fn a_stopped_claim_of_a_batch_hides_only_what_it_was_granted() {
    let pools = both_orders(10, restless(4, 10));
    sweep("claims of batches", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 10);
        cache(&ledger, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        Scenario::new(&ledger)
            .thread(ledger.worker(0), |worker| {
                worker.allocate(5);
            })
            .thread(ledger.worker(1), |worker| {
                worker.allocate(4);
                worker.release_all();
            })
            .thread(ledger.worker(2), |worker| {
                worker.hit(2);
                worker.allocate(2);
            })
    })
    .assert_happened(&["allocated", "none free", "hit", "evicted"]);
}

#[test]
fn a_stopped_sharer_keeps_its_reference_and_no_more() {
    let pools = both_orders(2, restless(2, 2));
    sweep("share", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 2);
        let owner = publisher(&ledger, 0, &[0]);
        Scenario::new(&ledger)
            .thread(owner, |worker| {
                worker.share();
                worker.release_from(1);
                worker.rewrite(1);
                worker.release_all();
            })
            .thread(ledger.worker(1), |worker| {
                worker.hit(0);
                worker.share();
                worker.release_all();
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(1);
                worker.release_all();
                worker.allocate(2);
                worker.release_all();
            })
    })
    .assert_happened(&["hit", "allocated", "none free", "rewritten"]);
}

/// The check on the checker: whoever waits for a block that a stopped thread holds is found out.
#[test]
#[should_panic(expected = "INV-11: thread 1")]
fn a_thread_that_waits_for_another_is_found_out() {
    let pools = both_orders(1, Tuning::default());
    sweep("waiting", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 1);
        Scenario::new(&ledger)
            .thread(ledger.worker(0), |worker| {
                worker.allocate(1);
                worker.release_all();
            })
            .thread(ledger.worker(1), |worker| {
                while !worker.allocate(1) {}
                worker.release_all();
            })
    });
}
