//! Entries that move while others push, scan and look up.

use looseleaf::{BlockKey, FreeOrder, Tuning};

use crate::{Cache, KEY, OTHER, check, race, restless};

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
fn an_allocation_whose_block_moves_behind_its_back_looks_again() {
    let outcomes = ["allocated", "hit", "looked again", "miss", "moved"];
    check(2, &outcomes, |seen| {
        let tuning = Tuning {
            young_threshold: Some(1),
            index_slots: Some(2),
            ..restless(2, 2)
        };
        let cache = Cache::new(seen, 2, FreeOrder::AppendAll, tuning);
        let [first, second] = [cache.allocate::<1>().unwrap()[0], cache.fill(KEY, 7)];
        cache.release(&[first]);
        race(cache, Cache::keep_blocks::<1>, move |cache| {
            // Moves the first block from where the allocation has yet to look to where it has been,
            // and leaves nothing in its place.
            cache.release(&[second]);
            cache.keep_hit(KEY, 7);
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
    let outcomes = ["allocated", "looked again", "moved", "swapped"];
    check(2, &outcomes, |seen| {
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
