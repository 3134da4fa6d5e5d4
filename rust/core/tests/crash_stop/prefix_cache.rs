//! Publishing, finding and forgetting blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use looseleaf::{PoolError, Published, Tuning};

use crate::ledger::{Ledger, key};
use crate::{Scenario, both_orders, cache, keep_all, publisher, restless, sweep};

#[test]
fn a_stopped_publish_lookup_or_eviction_stops_nobody() {
    let pools = both_orders(2, restless(2, 2));
    sweep("publish, look-up and eviction", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 2);
        let mut owner = ledger.worker(0);
        owner.allocate(1);
        Scenario::new(&ledger)
            .thread(owner, |worker| {
                worker.publish(0);
                worker.release_all();
            })
            .thread(ledger.worker(1), |worker| {
                for code in [0, 1, 0, 1] {
                    worker.hit(code);
                    worker.release_all();
                }
                worker.hit(0);
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(1);
                worker.publish(1);
                worker.release_all();
                worker.allocate(2);
            })
    })
    .assert_happened(&["hit", "miss", "allocated", "none free", "evicted"]);
}

#[test]
fn a_stopped_retraction_or_lookup_never_leads_to_other_content() {
    let pools = both_orders(2, restless(2, 2));
    sweep("retract and publish anew", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 2);
        let owner = publisher(&ledger, 0, &[0]);
        Scenario::new(&ledger)
            // Keeps the block, so that it looks to a late look-up as it did before: held once.
            .thread(owner, |worker| worker.rewrite(1))
            .thread(ledger.worker(1), |worker| {
                for code in [0, 1] {
                    worker.hit(code);
                    worker.release_all();
                }
            })
            .thread(ledger.worker(2), |worker| {
                worker.hit(0);
                worker.release_all();
                worker.retract(1);
            })
    })
    .assert_happened(&["hit", "miss", "retracted", "rewritten"]);
}

#[test]
fn a_stopped_admission_holds_its_blocks_and_nothing_else() {
    let pools = both_orders(4, restless(4, 4));
    sweep("admit and allocate", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 2);
        cache(&ledger, &[1, 0]);
        Scenario::new(&ledger)
            .thread(ledger.worker(0), |worker| {
                worker.admit(&[0, 1], 1);
            })
            .thread(ledger.worker(1), |worker| {
                worker.allocate(3);
                worker.release_all();
            })
            .thread(ledger.worker(2), |worker| {
                worker.admit(&[0], 2);
                worker.release_all();
            })
    })
    .assert_happened(&["hit", "allocated", "none free", "evicted"]);
}

#[test]
fn with_copies_of_a_key_a_stopped_eviction_leaves_the_others_to_be_hit() {
    let pools = both_orders(4, restless(2, 4)).map(keep_all);
    sweep("look-up of copies and eviction", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 1);
        let mut owner = ledger.worker(0);
        owner.allocate(1);
        cache(&ledger, &[0, 0]);
        Scenario::new(&ledger)
            .thread(owner, |worker| {
                worker.publish(0);
                worker.release_all();
            })
            .thread(ledger.worker(1), |worker| {
                worker.hit(0);
                worker.release_all();
                worker.hit(0);
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(2);
                worker.release_all();
                worker.retract(3);
            })
    })
    .assert_happened(&["hit", "published", "allocated", "evicted", "retracted"]);
}

#[test]
fn a_stopped_reset_forgets_what_it_came_to_and_loses_nothing() {
    let tiny_index = Tuning {
        index_slots: Some(2),
        index_ways: Some(1),
        ..restless(2, 3)
    };
    let pools = both_orders(3, tiny_index);
    sweep("reset, look-up and publish", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 3);
        cache(&ledger, &[0, 1]);
        Scenario::new(&ledger)
            .thread(ledger.worker(0), |worker| worker.reset())
            .thread(ledger.worker(1), |worker| {
                worker.hit(0);
                worker.release_all();
                worker.hit(1);
            })
            .thread(ledger.worker(2), |worker| {
                worker.allocate(2);
                worker.publish(1);
                worker.publish(2);
                worker.release_all();
            })
    })
    .assert_happened(&["reset", "hit", "miss", "overflowed", "duplicate"]);
}

#[test]
fn a_stopped_publisher_excludes_the_other_and_the_block_ends_with_one_key() {
    let pools = both_orders(1, restless(1, 1));
    sweep("two publishers of one block", &pools, |pool, _| {
        let ledger = Ledger::new(pool, 2);
        let winners = Arc::new(AtomicU64::new(0));
        let mut ids = [0];
        ledger.pool.allocate(&mut ids).unwrap();
        ledger.pool.share(&ids).unwrap();
        let mut scenario = Scenario::new(&ledger);
        for code in 0..2 {
            let winners = winners.clone();
            scenario = scenario.thread(ledger.worker(code), move |worker| {
                let pool = &worker.ledger.pool;
                match pool.publish(ids[0], &key(code)) {
                    Ok(Published::Cached) => assert_eq!(winners.fetch_add(1, SeqCst), 0, "INV-9"),
                    other => assert_eq!(other, Err(PoolError::AlreadyPublished { id: ids[0] })),
                }
                pool.release(&ids).unwrap();
            });
        }
        scenario
    })
    .assert_happened(&["published"]);
}
