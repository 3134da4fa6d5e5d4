//! Misuse is an error that changes nothing (INV-8), and errors carry numbers.
#![cfg(not(any(loom, shuttle)))]

use looseleaf::{
    BlockId, BlockKey, BlockPool, BlockUse, BlockView, KeyWidth, OutOfBlocks, PoolConfig,
    PoolError, Tuning,
};

const KEY: BlockKey = BlockKey([1, 2, 3, 4]);

fn pool(num_blocks: u32) -> BlockPool {
    BlockPool::new(PoolConfig::new(num_blocks)).unwrap()
}

fn allocate(pool: &BlockPool, count: usize) -> Vec<BlockId> {
    let mut ids = vec![0; count];
    pool.allocate(&mut ids).unwrap();
    ids
}

fn whole_state(pool: &BlockPool) -> (Vec<BlockView>, Vec<BlockId>, usize) {
    let mut views = vec![];
    pool.snapshot(&mut views);
    (views, pool.free_order(), pool.num_free())
}

/// Runs a call that must fail, and checks that nothing has changed and everything still adds up.
fn refused<E: std::fmt::Debug>(
    pool: &BlockPool,
    call: impl FnOnce(&BlockPool) -> Result<(), E>,
) -> E {
    let before = whole_state(pool);
    let error = call(pool).expect_err("the call is a misuse");
    assert_eq!(whole_state(pool), before);
    pool.check_invariants().unwrap();
    error
}

#[test]
fn a_pool_of_eight_hands_out_seven_blocks_and_never_the_null_block() {
    let pool = pool(8);
    assert_eq!(
        (pool.num_blocks(), pool.num_usable(), pool.num_free()),
        (8, 7, 7)
    );
    assert_eq!(allocate(&pool, 7), [1, 2, 3, 4, 5, 6, 7]);
    let error = refused(&pool, |pool| pool.allocate(&mut [0]));
    assert_eq!(
        error,
        OutOfBlocks {
            asked: 1,
            free: 0,
            cached: 0,
            pinned: 7,
            total: 8
        }
    );
}

#[test]
fn without_a_null_block_ids_count_from_zero() {
    let config = PoolConfig {
        reserve_null_block: false,
        ..PoolConfig::new(3)
    };
    let pool = BlockPool::new(config).unwrap();
    assert_eq!(allocate(&pool, 3), [0, 1, 2]);
    pool.release(&[2, 1, 0]).unwrap();
    assert_eq!(pool.free_order(), [2, 1, 0]);
}

#[test]
fn an_allocation_that_does_not_fit_says_what_there_was() {
    let pool = pool(6);
    let ids = allocate(&pool, 3);
    pool.publish(ids[0], &KEY).unwrap();
    pool.release(&ids[..1]).unwrap();
    let error = refused(&pool, |pool| pool.allocate(&mut [0; 4]));
    assert_eq!(
        error,
        OutOfBlocks {
            asked: 4,
            free: 3,
            cached: 1,
            pinned: 2,
            total: 6
        }
    );
    assert_eq!(
        error.to_string(),
        "asked for 4 blocks, 3 free (1 of them cached), 2 in use, pool of 6"
    );
}

#[test]
fn an_admission_counts_the_free_hits_it_would_take() {
    let pool = pool(6);
    let ids = allocate(&pool, 4);
    pool.publish(ids[0], &KEY).unwrap();
    pool.release(&ids[..1]).unwrap();
    let error = refused(&pool, |pool| {
        pool.admit(&[KEY], &mut [0], &mut [0; 2]).map(drop)
    });
    assert_eq!((error.asked, error.free), (3, 2));
    assert_eq!(pool.admit(&[KEY], &mut [0], &mut [0]), Ok(1));
}

#[test]
fn wrong_ids_are_refused_by_every_call() {
    let pool = pool(4);
    allocate(&pool, 1);
    let unknown = PoolError::UnknownBlock { id: 4, total: 4 };
    for (id, error) in [(4, unknown), (0, PoolError::NullBlock)] {
        assert_eq!(refused(&pool, |pool| pool.release(&[1, id])), error);
        assert_eq!(
            refused(&pool, |pool| pool.release_distinct(&[1, id])),
            error
        );
        assert_eq!(refused(&pool, |pool| pool.share(&[1, id])), error);
        assert_eq!(
            refused(&pool, |pool| pool.publish(id, &KEY).map(drop)),
            error
        );
        assert_eq!(refused(&pool, |pool| pool.retract(id).map(drop)), error);
        assert_eq!(
            (pool.ref_cnt(id), pool.is_writable(id), pool.key_of(id)),
            (0, false, None)
        );
    }
}

#[test]
fn free_blocks_cannot_be_released_shared_or_published() {
    let pool = pool(4);
    allocate(&pool, 1);
    let double = PoolError::DoubleRelease { id: 2 };
    assert_eq!(refused(&pool, |pool| pool.release(&[1, 2])), double);
    assert_eq!(
        refused(&pool, |pool| pool.release_distinct(&[1, 2])),
        double
    );
    let free = PoolError::FreeBlock { id: 2 };
    assert_eq!(refused(&pool, |pool| pool.share(&[1, 2])), free);
    assert_eq!(refused(&pool, |pool| pool.publish(2, &KEY).map(drop)), free);
}

#[test]
fn a_second_release_is_refused_for_plain_and_for_cached_blocks() {
    let pool = pool(4);
    let ids = allocate(&pool, 2);
    pool.publish(ids[0], &KEY).unwrap();
    pool.release(&ids).unwrap();
    for id in ids {
        let error = refused(&pool, |pool| pool.release(&[id]));
        assert_eq!(error, PoolError::DoubleRelease { id });
    }
}

#[test]
fn an_id_named_twice_is_refused_in_lists_of_any_length_and_order() {
    let pool = pool(101);
    let ids = allocate(&pool, 100);
    pool.share(&ids).unwrap(); // so that two references are there
    for length in [2, 3, 8, 9, 40, 100] {
        for (from, to) in [(0, 1), (0, length - 1), (length - 2, length - 1)] {
            let mut list: Vec<_> = ids[..length].iter().rev().copied().collect();
            list.swap(0, length / 2);
            list[to] = list[from];
            let error = PoolError::DuplicateId { id: list[from] };
            assert_eq!(refused(&pool, |pool| pool.release(&list)), error);
            assert_eq!(refused(&pool, |pool| pool.share(&list)), error);
        }
    }
}

#[test]
fn long_lists_of_distinct_ids_in_no_order_are_accepted() {
    let pool = pool(1001);
    let mut ids = allocate(&pool, 1000);
    ids.sort_by_key(|id| id.wrapping_mul(2_654_435_761));
    pool.share(&ids).unwrap();
    pool.release(&ids).unwrap();
    pool.release(&ids).unwrap();
    assert_eq!(pool.free_order(), ids);
}

#[test]
fn a_block_is_published_once() {
    let pool = pool(4);
    allocate(&pool, 1);
    pool.publish(1, &KEY).unwrap();
    let other = BlockKey([9; 4]);
    for key in [KEY, other] {
        let error = refused(&pool, |pool| pool.publish(1, &key).map(drop));
        assert_eq!(error, PoolError::AlreadyPublished { id: 1 });
    }
    assert_eq!(pool.key_of(1), Some(KEY));
}

#[test]
fn a_key_wider_than_the_pool_keeps_is_refused_and_never_hit() {
    let config = PoolConfig {
        key_width: KeyWidth::Bits128,
        ..PoolConfig::new(4)
    };
    let pool = BlockPool::new(config).unwrap();
    allocate(&pool, 1);
    let error = refused(&pool, |pool| pool.publish(1, &KEY).map(drop));
    assert_eq!(error, PoolError::KeyTooWide { bits: 128 });
    pool.publish(1, &BlockKey([1, 2, 0, 0])).unwrap();
    assert_eq!(pool.peek_prefix(&[KEY]).hits, 0);
    assert_eq!(pool.peek_prefix(&[BlockKey([1, 2, 0, 0])]).hits, 1);
}

#[test]
fn a_reference_count_does_not_overflow() {
    let pool = pool(3);
    let ids = allocate(&pool, 2);
    let most = (1 << 20) - 1;
    for _ in 1..most {
        pool.share(&ids[1..]).unwrap();
    }
    let error = refused(&pool, |pool| pool.share(&ids));
    assert_eq!(
        error,
        PoolError::RefCountOverflow {
            id: ids[1],
            max: most
        }
    );
    pool.publish(ids[1], &KEY).unwrap();
    assert_eq!(pool.match_prefix(&[KEY], &mut [0]), 0);
    for _ in 1..most {
        pool.release(&ids[1..]).unwrap();
    }
    assert_eq!((pool.ref_cnt(ids[1]), pool.num_free()), (1, 0));
}

#[test]
fn the_cache_is_reset_only_while_nothing_is_held() {
    let pool = pool(4);
    let ids = allocate(&pool, 2);
    pool.publish(ids[0], &KEY).unwrap();
    let error = refused(&pool, BlockPool::reset_prefix_cache);
    assert_eq!(error, PoolError::InUse { blocks: 2 });
    pool.release(&ids).unwrap();
    let order = pool.free_order();
    pool.reset_prefix_cache().unwrap();
    assert_eq!(pool.free_order(), order);
    assert_eq!((pool.stats().hashed, pool.peek_prefix(&[KEY]).hits), (0, 0));
}

#[test]
fn a_snapshot_says_what_each_block_is_used_for() {
    let pool = pool(6);
    let ids = allocate(&pool, 4);
    pool.publish(ids[1], &KEY).unwrap();
    pool.publish(ids[2], &BlockKey([9; 4])).unwrap();
    pool.release(&[ids[2], ids[3]]).unwrap();
    let mut views = vec![];
    pool.snapshot(&mut views);
    let uses: Vec<_> = views.iter().map(|view| view.state).collect();
    use BlockUse::{Cached, Free, InUse, Null, Published};
    assert_eq!(uses, [Null, InUse, Published, Cached, Free, Free]);
}

#[test]
fn impossible_configurations_name_the_field_and_what_is_allowed() {
    let tuned = |tuning| PoolConfig {
        tuning,
        ..PoolConfig::new(4)
    };
    let tuning = Tuning::default();
    let cases = [
        (
            PoolConfig::new(0),
            "num_blocks is 0, allowed is 2 to 16777215",
        ),
        (
            PoolConfig::new(1),
            "num_blocks is 1, allowed is 2 to 16777215",
        ),
        (
            PoolConfig::new(1 << 24),
            "num_blocks is 16777216, allowed is 2 to 16777215",
        ),
        (
            tuned(Tuning {
                young_slots: Some(0),
                ..tuning
            }),
            "tuning.young_slots is 0, allowed is 1 to 67108864",
        ),
        (
            tuned(Tuning {
                young_slots: Some(4),
                young_threshold: Some(4),
                ..tuning
            }),
            "tuning.young_threshold is 4, allowed is 0 to 3",
        ),
        (
            tuned(Tuning {
                index_ways: Some(9),
                ..tuning
            }),
            "tuning.index_ways is 9, allowed is 1 to 8",
        ),
    ];
    for (config, message) in cases {
        assert_eq!(BlockPool::new(config).unwrap_err().to_string(), message);
    }
}
