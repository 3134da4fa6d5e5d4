//! What the pool costs beside the blocks: memory per block, and none allocated after construction
//! (INV-12).
#![cfg(not(any(loom, shuttle)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use looseleaf::{
    BlockContent, BlockId, BlockKey, BlockPool, DuplicatePolicy, EventReader, FreeOrder, KeyWidth,
    PoolConfig, Prefix, Tuning,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn key(i: u64) -> BlockKey {
    BlockKey([i, i, 0, 0])
}

fn assert_allocation_free(what: &str, call: impl FnOnce()) {
    let before = ALLOCATIONS.get();
    call();
    assert_eq!(ALLOCATIONS.get() - before, 0, "{what} allocated memory");
}

#[test]
fn no_call_on_the_hot_path_allocates_memory() {
    for free_order in [FreeOrder::UnhashedFirst, FreeOrder::AppendAll] {
        // Small rings, so that moves, swaps and spills are among the calls.
        let tuning = Tuning {
            young_slots: Some(40),
            aged_slots: Some(150),
            ..Tuning::default()
        };
        let config = PoolConfig {
            free_order,
            tuning,
            duplicate_policy: DuplicatePolicy::KeepAll,
            ..PoolConfig::new(201)
        };
        let pool = BlockPool::new(config).unwrap();
        let keys: Vec<_> = (0..100).map(key).collect();
        let mut ids: Vec<BlockId> = vec![0; 200];
        let mut hits: Vec<BlockId> = vec![0; 100];
        for round in 0..50 {
            assert_allocation_free("allocate", || pool.allocate(&mut ids).unwrap());
            // In no order, so that the search for duplicates takes its long way.
            ids.sort_unstable_by_key(|id| id.wrapping_mul(2_654_435_761));
            assert_allocation_free("publish", || {
                for (id, i) in ids.iter().zip(0..) {
                    pool.publish(*id, &key(i)).unwrap();
                }
            });
            assert_allocation_free("share", || pool.share(&ids).unwrap());
            assert_allocation_free("release", || pool.release(&ids).unwrap());
            assert_allocation_free("release_distinct", || pool.release_distinct(&ids).unwrap());
            for _ in 0..10 {
                assert_allocation_free("look-up", || {
                    let expected = pool.peek_prefix(&keys).hits;
                    assert_eq!(pool.match_prefix(&keys, &mut hits), expected);
                    pool.release(&hits[..expected]).unwrap();
                });
            }
            assert_allocation_free("admit", || {
                let taken = pool
                    .admit(&keys[..10], &mut hits[..10], &mut ids[..20])
                    .unwrap();
                pool.release(&hits[..taken]).unwrap();
                pool.release(&ids[..20]).unwrap();
            });
            assert_allocation_free("retract", || {
                pool.retract(1 + round).unwrap();
            });
            assert_allocation_free("stats", || assert_eq!(pool.stats().free, 200));
            assert_allocation_free("a refused call", || {
                pool.allocate(&mut [0; 201]).unwrap_err();
                pool.release(&[1, 1]).unwrap_err();
            });
        }
        let stats = pool.stats();
        assert!(
            stats.moves > 0 && stats.role_swaps > 0 && stats.spills > 0,
            "{stats:?}"
        );
    }
}

#[test]
fn telling_of_hashes_allocates_no_memory_whether_or_not_there_is_room() {
    let tuning = Tuning {
        young_slots: Some(10),
        aged_slots: Some(10),
        ..Tuning::default()
    };
    let config = PoolConfig {
        event_capacity: 64,
        event_tokens: 16,
        tuning,
        ..PoolConfig::new(101)
    };
    let pool = BlockPool::new(config).unwrap();
    let mut reader = EventReader::new(&pool).unwrap();
    let (mut ids, mut events) = (vec![0; 100], vec![]);
    let mut told = 0;
    for round in 0..20 {
        // 100 removals, after the first round, and 100 blocks stored.
        assert_allocation_free("allocate", || pool.allocate(&mut ids).unwrap());
        assert_allocation_free("publish", || {
            for (id, i) in ids.iter().zip(0..) {
                let content = BlockContent {
                    parent: Some(key(i)),
                    tokens: &[7; 16],
                    group: 3,
                    after: None,
                };
                let key = key(1000 * round + i);
                pool.publish_content(*id, &key, &content).unwrap();
            }
        });
        assert_allocation_free("retract", || assert!(pool.retract(ids[0]).unwrap()));
        assert_allocation_free("release", || pool.release(&ids).unwrap());
        if round % 3 == 0 {
            assert_allocation_free("reset", || pool.reset_prefix_cache().unwrap());
        }
        reader.drain(&mut events);
        told += events.len();
    }
    let stats = pool.stats();
    assert!(
        told > 500 && stats.lost_events > 500 && stats.spilled_hashes > 100 && stats.evictions > 50,
        "{told}, {stats:?}"
    );
}

#[test]
fn a_block_costs_92_bytes_with_128_bit_keys_and_108_with_256() {
    let bytes_per_block = |key_width, duplicate_policy, verify_tokens| {
        let blocks = 1 << 20;
        let config = PoolConfig {
            key_width,
            duplicate_policy,
            verify_tokens,
            ..PoolConfig::new(blocks)
        };
        BlockPool::new(config).unwrap().metadata_bytes() as f64 / f64::from(blocks)
    };
    assert_eq!(
        bytes_per_block(KeyWidth::Bits128, DuplicatePolicy::FirstWins, 0),
        92.0
    );
    assert_eq!(
        bytes_per_block(KeyWidth::Bits256, DuplicatePolicy::FirstWins, 0),
        108.0
    );
    assert_eq!(
        bytes_per_block(KeyWidth::Bits256, DuplicatePolicy::KeepAll, 0),
        116.0
    );
    // Tokens of 4 bytes, and a link of 16.
    assert_eq!(
        bytes_per_block(KeyWidth::Bits128, DuplicatePolicy::FirstWins, 16),
        92.0 + 64.0 + 16.0
    );
}

#[test]
fn verifying_tokens_allocates_no_memory() {
    let config = PoolConfig {
        verify_tokens: 4,
        ..PoolConfig::new(101)
    };
    let pool = BlockPool::new(config).unwrap();
    let mut ids: Vec<BlockId> = vec![0; 50];
    let mut tokens = vec![7; 200];
    let keys: Vec<_> = (0..50).map(|i| key(i % 8)).collect();
    for round in 0..10 {
        tokens[0] = round % 3;
        let prefix = Prefix {
            keys: &keys,
            tokens: &tokens,
            group: 0,
        };
        assert_allocation_free("admit and publish", || {
            let hits = pool.admit_table(prefix, &mut ids).unwrap();
            assert!(pool.publish_prefix(&ids, prefix, hits).is_ok());
        });
        assert_allocation_free("look-up", || assert!(pool.peek_prefix(prefix).hits > 0));
        ids.reverse();
        pool.release(&ids).unwrap();
    }
    let stats = pool.stats();
    assert!(
        stats.collisions > 0 && stats.orphans > 0 && stats.evictions > 0,
        "{stats:?}"
    );
}
