//! Replaying the events of a pool gives what is resident in it (INV-13), whatever happened between
//! two drains and however many records found no room.
#![cfg(not(any(loom, shuttle)))]

mod consumer;
mod model;
mod threads;

use consumer::Hash;
use looseleaf::{
    BlockContent, BlockId, BlockKey, BlockPool, DuplicatePolicy, Event, EventReader, KeyWidth,
    PoolConfig, PoolError, Published, Tuning,
};

const NUM_KEYS: u64 = 4;
const NUM_GROUPS: u32 = 2;

fn key(i: u64) -> BlockKey {
    BlockKey([i + 1, i << 9, 0, 0])
}

fn hashes() -> Vec<Hash> {
    (0..NUM_KEYS)
        .flat_map(|i| (0..NUM_GROUPS).map(move |group| (key(i), group)))
        .collect()
}

/// What everybody says about the hash of this number: it is the only one, so it can be checked.
fn tokens_of(i: u64) -> Vec<u32> {
    vec![i as u32; i as usize]
}

fn publish(pool: &BlockPool, id: BlockId, i: u64, group: u32) -> Result<Published, PoolError> {
    let content = BlockContent {
        parent: (i > 0).then(|| key(i - 1)),
        tokens: &tokens_of(i),
        group,
        after: None,
    };
    pool.publish_content(id, &key(i), &content)
}

fn check_content(events: &[Event]) {
    for event in events {
        if let Event::Stored {
            key: stored,
            parent,
            tokens,
            ..
        } = event
        {
            let i = (0..NUM_KEYS).find(|i| key(*i) == *stored).unwrap();
            assert_eq!(*parent, (i > 0).then(|| key(i - 1)));
            assert_eq!(**tokens, tokens_of(i));
        }
    }
}

fn pool_with_events(config: PoolConfig) -> BlockPool {
    let config = PoolConfig {
        event_tokens: NUM_KEYS as u32,
        ..config
    };
    BlockPool::new(config).unwrap()
}

/// Rings with room for two blocks.
const OVERFLOWING: Tuning = Tuning {
    young_slots: Some(1),
    aged_slots: Some(1),
    young_threshold: Some(0),
    moves_per_push: Some(1),
    lazy_close: Some(1),
    index_slots: None,
    index_ways: None,
};

fn allocate<const N: usize>(pool: &BlockPool) -> [BlockId; N] {
    let mut ids = [0; N];
    pool.allocate(&mut ids).unwrap();
    ids
}

fn drain(reader: &mut EventReader<&BlockPool>) -> Vec<Event> {
    let mut events = vec![];
    reader.drain(&mut events);
    events
}

fn stored(i: u64, group: u32) -> Event {
    Event::Stored {
        key: key(i),
        parent: (i > 0).then(|| key(i - 1)),
        tokens: tokens_of(i).into(),
        group,
    }
}

fn removed(i: u64, group: u32) -> Event {
    Event::Removed { key: key(i), group }
}

fn config_with(event_capacity: u32) -> PoolConfig {
    PoolConfig {
        event_capacity,
        ..PoolConfig::new(9)
    }
}

#[test]
fn a_hash_is_stored_with_its_first_copy_and_removed_with_its_last() {
    let pool = pool_with_events(PoolConfig {
        duplicate_policy: DuplicatePolicy::KeepAll,
        ..config_with(16)
    });
    let mut reader = EventReader::new(&pool).unwrap();
    let [first, second] = allocate(&pool);
    publish(&pool, first, 2, 1).unwrap();
    publish(&pool, second, 2, 1).unwrap();
    assert_eq!(drain(&mut reader), [stored(2, 1)]);
    pool.retract(first).unwrap();
    assert_eq!(drain(&mut reader), []);
    pool.retract(second).unwrap();
    assert_eq!(drain(&mut reader), [removed(2, 1)]);
}

#[test]
fn the_hash_of_an_evicted_block_is_removed_before_its_next_is_stored() {
    let pool = pool_with_events(PoolConfig {
        num_blocks: 2,
        ..config_with(16)
    });
    let mut reader = EventReader::new(&pool).unwrap();
    for i in [1, 2] {
        let ids = allocate::<1>(&pool);
        publish(&pool, ids[0], i, 0).unwrap();
        pool.release(&ids).unwrap();
    }
    assert_eq!(
        drain(&mut reader),
        [stored(1, 0), removed(1, 0), stored(2, 0)]
    );
}

#[test]
fn after_an_overflow_all_that_is_resident_is_stored_again_parents_first() {
    let pool = pool_with_events(config_with(2));
    let mut reader = EventReader::new(&pool).unwrap();
    let ids = allocate::<4>(&pool);
    for (id, i) in ids.into_iter().zip([3, 1, 0, 2]) {
        publish(&pool, id, i, 0).unwrap();
    }
    assert_eq!(pool.stats().lost_events, 2);
    assert_eq!(
        drain(&mut reader),
        [
            Event::Cleared { resync: true },
            stored(0, 0),
            stored(1, 0),
            stored(2, 0),
            stored(3, 0),
        ]
    );
    pool.retract(ids[0]).unwrap();
    assert_eq!(drain(&mut reader), [removed(3, 0)]);
}

#[test]
fn a_reset_is_one_event_however_many_hashes_go() {
    let pool = pool_with_events(config_with(2));
    let mut reader = EventReader::new(&pool).unwrap();
    let ids = allocate::<4>(&pool);
    for (id, i) in ids.into_iter().zip(0..) {
        publish(&pool, id, i, 0).unwrap();
        drain(&mut reader);
    }
    pool.release(&ids).unwrap();
    pool.reset_prefix_cache().unwrap();
    assert_eq!(drain(&mut reader), [Event::Cleared { resync: false }]);
    assert_eq!(pool.stats().lost_events, 0);
    assert_eq!(drain(&mut reader), []);
}

#[test]
fn there_is_one_reader_at_a_time_and_the_next_starts_over() {
    let pool = pool_with_events(config_with(8));
    let mut reader = EventReader::new(&pool).unwrap();
    assert_eq!(EventReader::new(&pool).err(), Some(PoolError::EventsTaken));
    let [id] = allocate(&pool);
    publish(&pool, id, 1, 0).unwrap();
    assert_eq!(drain(&mut reader), [stored(1, 0)]);
    drop(reader);
    let mut next = EventReader::new(&pool).unwrap();
    assert_eq!(
        drain(&mut next),
        [Event::Cleared { resync: true }, stored(1, 0)]
    );
}

#[test]
fn a_pool_without_events_has_no_reader_and_takes_no_memory_for_them() {
    let without = BlockPool::new(config_with(0)).unwrap();
    assert_eq!(EventReader::new(&without).err(), Some(PoolError::NoEvents));
    let with = pool_with_events(config_with(32));
    // Per record: mark and tenancy, key, parent, outline, tokens. Per block the last three.
    let tokens = 4 * NUM_KEYS as usize;
    let expected = 32 * (16 + 32 + 32 + 8 + tokens) + 9 * (32 + 8 + tokens);
    assert_eq!(with.metadata_bytes() - without.metadata_bytes(), expected);
}

#[test]
fn what_events_could_not_carry_is_refused_and_nothing_is_published() {
    let pool = pool_with_events(PoolConfig {
        key_width: KeyWidth::Bits128,
        ..config_with(8)
    });
    let mut reader = EventReader::new(&pool).unwrap();
    let [id] = allocate(&pool);
    let mut content = BlockContent {
        tokens: &[1; 5],
        ..BlockContent::default()
    };
    assert_eq!(
        pool.publish_content(id, &key(0), &content),
        Err(PoolError::TooManyTokens { found: 5, max: 4 })
    );
    content.tokens = &[];
    content.parent = Some(BlockKey([1, 2, 3, 4]));
    assert_eq!(
        pool.publish_content(id, &key(0), &content),
        Err(PoolError::KeyTooWide { bits: 128 })
    );
    assert_eq!((pool.key_of(id), drain(&mut reader)), (None, vec![]));
}
