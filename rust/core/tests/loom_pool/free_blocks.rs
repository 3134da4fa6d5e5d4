//! Handing blocks out and taking them back.

use loom::thread;
use looseleaf::{FreeOrder, PoolError, Published};

use crate::{Cache, KEY, calm, check, race};

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
    check(2, &["allocated", "one of those claimed"], |seen| {
        // One more than the claim wants, so that both are granted theirs.
        let cache = Cache::new(seen, 5, FreeOrder::AppendAll, calm());
        cache.use_blocks::<5>();
        race(cache, Cache::keep_blocks::<4>, |cache| {
            let [id] = cache.allocate().unwrap();
            cache.write(id, 0);
            // Neither the front nor what a claim of four leaves.
            if (1..4).contains(&id) {
                cache.saw("one of those claimed");
            }
            cache.kept.lock().unwrap().push(id);
        });
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
fn of_two_releases_of_one_reference_one_succeeds() {
    check(3, &["ours", "theirs"], |seen| {
        let cache = Cache::new(seen, 1, FreeOrder::UnhashedFirst, calm());
        let [id] = cache.allocate().unwrap();
        let other = cache.clone();
        let thread = thread::spawn(move || other.pool.release(&[id]));
        let ours = cache.pool.release(&[id]);
        let theirs = thread.join().unwrap();
        assert!(ours.is_ok() != theirs.is_ok());
        cache.saw(if ours.is_ok() { "ours" } else { "theirs" });
        assert_eq!(ours.and(theirs), Err(PoolError::DoubleRelease { id }));
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
