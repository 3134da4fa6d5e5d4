//! Operations of the pool.

use std::hint::black_box;

use looseleaf::{BlockId, BlockKey, BlockPool, PoolConfig};

use crate::pools::Pool;
use crate::scripts::{EvictPublishRelease, HitFree, HitHeld, NUM_BLOCKS, Script, ShareRelease};
use crate::{Call, Row};

/// Blocks of a prompt of 900 tokens.
const TABLE: usize = 57;

pub const ROWS: &[Row] = &[
    Row::new("allocate 1", 10_000, allocate::<1>),
    Row::new("allocate 57", 500, allocate::<TABLE>),
    Row::new("release 1", 10_000, release::<1>),
    Row::new("release 57", 500, release::<TABLE>),
    Row::new("release_distinct 57", 500, release_distinct),
    Row::new("share and release 64", 500, script::<ShareRelease>),
    Row::new("hit and release 64 held", 500, script::<HitHeld>),
    // Far enough for the eviction queue to move entries on and to swap its rings.
    Row::new("hit and release 64 free", 4000, script::<HitFree>),
    Row::new("publish 1", 10_000, publish),
    Row::new(
        "evict, publish and release 64",
        2000,
        script::<EvictPublishRelease>,
    ),
    Row::new("admit 512, 461 of them hits, and release", 200, admit),
];

fn pool() -> BlockPool {
    BlockPool::with_blocks(NUM_BLOCKS)
}

fn script<S: Script + 'static>(_: usize) -> Call {
    let pool = pool();
    let mut script = S::prepare(&pool, 0);
    Box::new(move |_| script.run(&pool))
}

fn allocate<const BLOCKS: usize>(_: usize) -> Call {
    let pool = pool();
    let mut table = [0; BLOCKS];
    Box::new(move |_| pool.allocate(black_box(&mut table)).expect("there are"))
}

fn release<const BLOCKS: usize>(calls: usize) -> Call {
    let pool = pool();
    let tables: Vec<_> = (0..calls).map(|_| tail_first::<BLOCKS>(&pool)).collect();
    Box::new(move |i| pool.release(&tables[i]).expect("they are held"))
}

fn release_distinct(calls: usize) -> Call {
    let pool = pool();
    let tables: Vec<_> = (0..calls).map(|_| tail_first::<TABLE>(&pool)).collect();
    Box::new(move |i| pool.release_distinct(&tables[i]).expect("they are held"))
}

fn tail_first<const BLOCKS: usize>(pool: &BlockPool) -> [BlockId; BLOCKS] {
    let mut table = [0; BLOCKS];
    pool.allocate(&mut table).expect("there are");
    table.reverse();
    table
}

fn publish(calls: usize) -> Call {
    let pool = pool();
    let mut table = vec![0; calls];
    pool.allocate(&mut table).expect("there are");
    Box::new(move |i| {
        let published = pool.publish(table[i], &key(i as u64));
        published.expect("it is held and has no hash");
    })
}

/// A prompt of 8192 tokens of which 90 % are cached and nobody's.
fn admit(_: usize) -> Call {
    let config = PoolConfig::new(NUM_BLOCKS);
    let pool = BlockPool::new(config).expect("the size is valid");
    let keys: Vec<_> = (0..512).map(key).collect();
    let mut table = vec![0; 461];
    pool.allocate(&mut table).expect("there are");
    pool.publish_prefix(&table, &keys[..461], 0)
        .expect("they are held");
    table.reverse();
    pool.release(&table).expect("they are held");
    table.resize(512, 0);
    Box::new(move |_| {
        assert_eq!(pool.admit_table(&keys, &mut table), Ok(461));
        table.reverse();
        pool.release_distinct(&table).expect("they are held");
    })
}

fn key(i: u64) -> BlockKey {
    let word = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    BlockKey([word ^ word >> 32, word ^ word >> 29, word, i])
}
