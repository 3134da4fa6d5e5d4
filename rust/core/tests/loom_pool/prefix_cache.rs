//! Publishing, finding and forgetting blocks.

use loom::thread;
use looseleaf::{DuplicatePolicy, FreeOrder, PoolConfig, Published};

use crate::{Cache, KEY, OTHER, calm, check, race};

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
fn with_two_copies_of_a_key_an_eviction_leaves_one_to_be_hit() {
    check(3, &["allocated", "hit"], |seen| {
        let order = FreeOrder::UnhashedFirst;
        let cache = Cache::with_policy(seen, 2, order, calm(), DuplicatePolicy::KeepAll);
        let copies = [cache.fill(KEY, 7), cache.fill(KEY, 7)];
        cache.release(&copies);
        race(
            cache,
            |cache| cache.keep_hit(KEY, 7),
            Cache::keep_blocks::<1>,
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

/// A whole table, in which a hit that goes away is replaced by a new block, or nothing.
#[test]
fn table_admission_against_retraction() {
    check(3, &["hit", "replaced"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        cache.release(&[id]);
        race(
            cache,
            |cache| cache.keep_table(KEY, 7),
            move |cache| _ = cache.pool.retract(id).unwrap(),
        );
    });
}

#[test]
fn table_admission_against_a_holder_of_the_hit_that_rewrites_it() {
    check(2, &["hit", "none free", "replaced", "rewritten"], |seen| {
        let cache = Cache::new(seen, 2, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        race(
            cache,
            |cache| cache.keep_table(KEY, 7),
            move |cache| {
                if cache.pool.retract(id).unwrap() && cache.pool.is_writable(id) {
                    cache.saw("rewritten");
                    cache.write(id, 8);
                }
                cache.release(&[id]);
            },
        );
    });
}

#[test]
fn table_admission_against_allocation() {
    check(3, &["allocated", "hit", "none free", "replaced"], |seen| {
        let cache = Cache::new(seen, 3, FreeOrder::UnhashedFirst, calm());
        let id = cache.fill(KEY, 7);
        cache.release(&[id]);
        race(
            cache,
            |cache| cache.keep_table(KEY, 7),
            |cache| cache.use_blocks::<3>(),
        );
    });
}

/// A pool in which one key stands for whatever is published under it: the tokens decide.
fn verifying(seen: &crate::Seen, num_blocks: u32) -> loom::sync::Arc<Cache> {
    Cache::with_config(
        seen,
        PoolConfig {
            verify_tokens: 1,
            ..Cache::config(num_blocks, calm())
        },
    )
}

/// Allocates a block and publishes other content under the key, as an eviction makes it.
fn take_over(cache: &Cache) {
    if let Some([id]) = cache.allocate() {
        cache.write(id, 8);
        cache.publish_verified(&[id], &[KEY], &[8]);
        cache.release(&[id]);
    }
}

#[test]
fn a_block_taken_over_by_colliding_content_against_a_lookup_of_what_it_held() {
    check(1, &["hit 7", "miss 7"], |seen| {
        let cache = verifying(seen, 1);
        let ids = cache.fill_verified(&[KEY], &[7]);
        cache.release(&ids);
        race(
            cache,
            |cache| cache.use_verified_hits(&[KEY], &[7]),
            take_over,
        );
    });
}

#[test]
fn a_block_taken_over_by_colliding_content_against_a_lookup_of_what_it_will_hold() {
    check(2, &["hit 8", "miss 8"], |seen| {
        let cache = verifying(seen, 1);
        let ids = cache.fill_verified(&[KEY], &[7]);
        cache.release(&ids);
        race(
            cache,
            |cache| cache.use_verified_hits(&[KEY], &[8]),
            take_over,
        );
    });
}

#[test]
fn a_held_block_published_anew_under_its_key_against_a_lookup_of_what_it_held() {
    check(2, &["hit 7", "miss 7", "rewritten"], |seen| {
        let cache = verifying(seen, 1);
        let [id] = cache.fill_verified(&[KEY], &[7])[..] else {
            unreachable!("one block per key")
        };
        race(
            cache,
            |cache| cache.keep_verified_hits(&[KEY], &[7]),
            move |cache| {
                if cache.pool.retract(id).unwrap() && cache.pool.is_writable(id) {
                    cache.saw("rewritten");
                    cache.write(id, 8);
                    cache.publish_verified(&[id], &[KEY], &[8]);
                }
                cache.kept.lock().unwrap().push(id);
            },
        );
    });
}

/// The second block has the same key and token in both prompts; only the first tells them apart.
#[test]
fn a_beginning_replaced_by_one_that_collides_against_a_lookup_of_the_whole_prompt() {
    check(2, &["hit 8", "miss 8"], |seen| {
        let cache = verifying(seen, 2);
        let ids = cache.fill_verified(&[KEY, OTHER], &[7, 9]);
        // The beginning is evicted first, and the block behind it stays cached.
        cache.release(&ids);
        race(
            cache,
            |cache| cache.use_verified_hits(&[KEY, OTHER], &[8, 9]),
            take_over,
        );
    });
}
