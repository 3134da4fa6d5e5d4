//! The lists in `benches/` are a fair peer only if they do the same work: used from one thread, they
//! hand out the same blocks as the pool.
#![cfg(not(any(loom, shuttle)))]

#[path = "../benches/pools/mod.rs"]
mod pools;

use looseleaf::{BlockId, BlockKey, BlockPool};
use pools::{MutexPool, Pool, SpinPool};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

const NUM_KEYS: u64 = 8;

#[derive(Clone, Debug)]
enum Call {
    Allocate(usize),
    /// The held references at these places, as far as they are of distinct blocks.
    Release(Vec<Index>),
    Share(Vec<Index>),
    Match(Vec<BlockKey>),
    /// The held blocks without a hash at these places.
    Publish(Vec<Index>, Vec<BlockKey>),
}

fn key_list() -> impl Strategy<Value = Vec<BlockKey>> {
    let keys: Vec<_> = (0..NUM_KEYS)
        .map(|i| BlockKey([i << 57 | i, i, i, 1]))
        .collect();
    subsequence(keys, 0..=NUM_KEYS as usize).prop_shuffle()
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let places = || vec(any::<Index>(), 0..8);
    let call = prop_oneof![
        3 => (0..4_usize).prop_map(Call::Allocate),
        1 => (0..20_usize).prop_map(Call::Allocate),
        4 => places().prop_map(Call::Release),
        1 => places().prop_map(Call::Share),
        3 => key_list().prop_map(Call::Match),
        3 => (places(), key_list()).prop_map(|(places, keys)| Call::Publish(places, keys)),
    ];
    vec(call, 1..120)
}

/// Makes the calls and returns what the pool answered, ending with the order of all its blocks.
fn answers<P: Pool>(num_blocks: u32, calls: &[Call]) -> Vec<Vec<BlockId>> {
    let pool = P::with_blocks(num_blocks);
    // One entry per reference; and the blocks that `publish` refuses.
    let (mut held, mut published): (Vec<BlockId>, Vec<BlockId>) = (vec![], vec![]);
    let mut answers = vec![];
    for call in calls {
        match call {
            Call::Allocate(count) => {
                let mut out = vec![0; *count];
                let taken = pool.allocate(&mut out);
                published.retain(|id| !(taken && out.contains(id)));
                held.extend(out.iter().filter(|_| taken));
                answers.push(out);
            }
            Call::Release(places) => {
                let ids = distinct(places, &held);
                for id in &ids {
                    let place = held.iter().position(|held| held == id).unwrap();
                    held.remove(place);
                }
                pool.release(&ids);
            }
            Call::Share(places) => {
                let ids = distinct(places, &held);
                pool.share(&ids);
                held.extend(&ids);
            }
            Call::Match(keys) => {
                let mut out = vec![0; keys.len()];
                let hits = pool.match_prefix(keys, &mut out);
                out.truncate(hits);
                held.extend(&out);
                answers.push(out);
            }
            Call::Publish(places, keys) => {
                let plain = held.iter().filter(|id| !published.contains(id));
                let mut ids = distinct(places, &plain.copied().collect::<Vec<_>>());
                ids.truncate(keys.len());
                for (id, key) in ids.iter().zip(keys) {
                    let cached = pool.publish(&[*id], &[*key]);
                    published.extend((cached == 1).then_some(id));
                    answers.push(vec![cached as BlockId]);
                }
            }
        }
    }
    held.iter().for_each(|id| pool.release(&[*id]));
    let mut order = vec![0; num_blocks as usize - 1];
    assert!(pool.allocate(&mut order));
    answers.push(order);
    answers
}

fn distinct(places: &[Index], held: &[BlockId]) -> Vec<BlockId> {
    let mut ids: Vec<BlockId> = vec![];
    for place in places.iter().filter(|_| !held.is_empty()) {
        let id = *place.get(held);
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

proptest! {
    #[test]
    fn lists_behind_a_lock_hand_out_the_same_blocks_as_the_pool(
        num_blocks in 2..24_u32,
        calls in calls(),
    ) {
        let ours = answers::<BlockPool>(num_blocks, &calls);
        prop_assert_eq!(&answers::<SpinPool>(num_blocks, &calls), &ours);
        prop_assert_eq!(&answers::<MutexPool>(num_blocks, &calls), &ours);
    }
}

#[test]
fn a_prefix_that_is_published_in_one_call_is_hit_in_every_pool() {
    fn hits<P: Pool>() -> (usize, Vec<BlockId>) {
        let pool = P::with_blocks(8);
        let keys = [1, 2, 1].map(|i| BlockKey([i; 4]));
        let (mut ids, mut hits) = ([0; 3], vec![0; 3]);
        assert!(pool.allocate(&mut ids));
        let cached = pool.publish(&ids, &keys);
        assert_eq!(pool.match_prefix(&keys, &mut hits), 3);
        (cached, hits)
    }
    assert_eq!(hits::<BlockPool>(), (2, vec![1, 2, 1]));
    assert_eq!(hits::<SpinPool>(), (2, vec![1, 2, 1]));
    assert_eq!(hits::<MutexPool>(), (2, vec![1, 2, 1]));
}
