//! Pools that compare tokens, under hashes of so few bits that they collide all the time: a look-up
//! finds exactly what a map of whole prefixes says, and never another prompt's blocks.
#![cfg(not(any(loom, shuttle)))]

use std::cell::Cell;
use std::collections::BTreeMap;

use looseleaf::{
    BlockContent, BlockHasher, BlockId, BlockKey, BlockPool, DuplicatePolicy, HashAlgo, PoolConfig,
    PoolError, Prefix, PrefixPeek, Published, Tuning,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SIZE: usize = 2;

fn config(num_blocks: u32) -> PoolConfig {
    PoolConfig {
        verify_tokens: SIZE as u32,
        ..PoolConfig::new(num_blocks)
    }
}

fn keys_of(bits: u32, tokens: &[u32]) -> Vec<BlockKey> {
    let hasher = BlockHasher::new(HashAlgo::FewBits(bits), None);
    hasher.hash_prefix(tokens, SIZE as u32, None, None, &[])
}

/// Numbers choose among what is possible when the call comes.
#[derive(Clone, Debug)]
enum Call {
    /// Admits a prompt and publishes what it had to compute.
    Serve(Vec<u32>),
    /// As `Serve`, but computes everything, as for prompts that read no cache.
    ServeAnew(Vec<u32>),
    Look(Vec<u32>),
    Release(usize),
    Retract(BlockId),
}

fn calls() -> impl Strategy<Value = Call> {
    // Few tokens, so that prompts begin alike and go on alike after beginnings that differ.
    let prompt = || prop::collection::vec(prop::sample::select(vec![1, 1, 1, 2, 3]), SIZE..9);
    prop_oneof![
        5 => prompt().prop_map(Call::Serve),
        2 => prompt().prop_map(Call::ServeAnew),
        4 => prompt().prop_map(Call::Look),
        5 => any::<usize>().prop_map(Call::Release),
        1 => (1..13u32).prop_map(Call::Retract),
    ]
}

/// The pool beside a map of what can be hit: prefixes, whole, and their blocks, oldest first.
struct Cache {
    pool: BlockPool,
    bits: u32,
    keeps_all: bool,
    hittable: BTreeMap<Vec<u32>, Vec<BlockId>>,
    held: Vec<Vec<BlockId>>,
}

impl Cache {
    fn new(bits: u32, duplicate_policy: DuplicatePolicy) -> Self {
        // 12 blocks, and room for 16 entries of one key: no publish finds the index full.
        let tuning = Tuning {
            index_slots: Some(256),
            ..Tuning::default()
        };
        let config = PoolConfig {
            duplicate_policy,
            tuning,
            ..config(13)
        };
        Self {
            pool: BlockPool::new(config).unwrap(),
            bits,
            keeps_all: duplicate_policy == DuplicatePolicy::KeepAll,
            hittable: BTreeMap::new(),
            held: vec![],
        }
    }

    /// The leading blocks that a look-up must find.
    fn expected(&self, tokens: &[u32]) -> Vec<BlockId> {
        let ends = (SIZE..=tokens.len()).step_by(SIZE);
        ends.map_while(|end| self.hittable.get(&tokens[..end]))
            .map(|blocks| blocks[0])
            .collect()
    }

    /// The block lost its hash. If it was the last of its prefix, what continued that is lost too.
    fn forget(&mut self, id: BlockId) {
        let mut holders = self.hittable.iter_mut();
        let Some((prefix, blocks)) = holders.find(|(_, blocks)| blocks.contains(&id)) else {
            return;
        };
        blocks.retain(|block| *block != id);
        if blocks.is_empty() {
            let prefix = prefix.clone();
            self.hittable.retain(|other, _| !other.starts_with(&prefix));
        }
    }

    fn look(&self, tokens: &[u32]) -> usize {
        let keys = keys_of(self.bits, tokens);
        let prefix = Prefix {
            keys: &keys,
            tokens,
            group: 0,
        };
        let expected = self.expected(tokens);
        let mut hits = vec![0; keys.len()];
        let free = expected.iter().filter(|id| self.pool.ref_cnt(**id) == 0);
        let peek = PrefixPeek {
            hits: expected.len(),
            free_hits: free.count(),
        };
        assert_eq!(self.pool.peek_prefix(prefix), peek);
        let found = self.pool.match_prefix(prefix, &mut hits);
        assert_eq!(hits[..found], expected);
        assert_eq!(self.pool.peek_prefix(&keys).hits, 0, "by keys alone");
        hits[..found].reverse();
        self.pool.release(&hits[..found]).unwrap();
        found
    }

    fn serve(&mut self, tokens: &[u32], reads: bool) {
        let keys = keys_of(self.bits, tokens);
        let prefix = Prefix {
            keys: &keys,
            tokens,
            group: 0,
        };
        let mut table = vec![0; keys.len()];
        let expected = if reads { self.expected(tokens) } else { vec![] };
        let admitted = if reads {
            self.pool.admit_table(prefix, &mut table)
        } else {
            self.pool.allocate(&mut table).map(|()| 0)
        };
        let Ok(hits) = admitted else { return };
        assert_eq!(table[..hits], expected);
        table[hits..].iter().for_each(|id| self.forget(*id));
        let mut cached = 0;
        for (index, id) in table.iter().enumerate().skip(hits) {
            let prefix = tokens[..(index + 1) * SIZE].to_vec();
            let known = self.hittable.get_mut(&prefix);
            cached += usize::from(known.is_none() || self.keeps_all);
            match known {
                Some(blocks) if self.keeps_all => blocks.push(*id),
                Some(_) => {}
                None => _ = self.hittable.insert(prefix, vec![*id]),
            }
        }
        assert_eq!(self.pool.publish_prefix(&table, prefix, hits), Ok(cached));
        self.held.push(table);
    }

    fn run(&mut self, call: &Call) -> usize {
        match call {
            Call::Serve(prompt) => self.serve(prompt, true),
            Call::ServeAnew(prompt) => self.serve(prompt, false),
            Call::Look(prompt) => return self.look(prompt),
            Call::Release(which) if !self.held.is_empty() => {
                let mut table = self.held.swap_remove(which % self.held.len());
                table.reverse();
                self.pool.release(&table).unwrap();
            }
            Call::Release(_) => {}
            Call::Retract(id) => {
                if self.pool.retract(*id).unwrap() {
                    self.forget(*id);
                }
            }
        }
        self.pool.check_invariants().unwrap();
        0
    }
}

#[test]
fn hits_are_those_of_a_map_of_whole_prefixes_however_few_bits_a_hash_has() {
    let seen = [(); 4].map(|()| Cell::new(0));
    let mut runner = TestRunner::new(Config {
        cases: Config::default().cases * 4,
        ..Config::with_source_file(file!())
    });
    let policies = [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll];
    let setups = (
        prop::sample::select(vec![0, 1, 4, 40]),
        prop::sample::select(policies.to_vec()),
    );
    let calls = prop::collection::vec(calls(), 1..100);
    let outcome = runner.run(&(setups, calls), |((bits, policy), calls)| {
        let mut cache = Cache::new(bits, policy);
        let hits: usize = calls.iter().map(|call| cache.run(call)).sum();
        let stats = cache.pool.stats();
        let counts = [
            hits as u64,
            stats.collisions,
            stats.orphans,
            stats.evictions,
        ];
        for (seen, count) in seen.iter().zip(counts) {
            seen.set(seen.get() + count);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(seen.iter().all(|count| count.get() > 1000), "{seen:?}");
}

fn publish(pool: &BlockPool, keys: &[BlockKey], tokens: &[u32]) -> Vec<BlockId> {
    let mut ids = vec![0; keys.len()];
    pool.allocate(&mut ids).unwrap();
    let prefix = Prefix {
        keys,
        tokens,
        group: 0,
    };
    pool.publish_prefix(&ids, prefix, 0).unwrap();
    ids
}

fn hits(pool: &BlockPool, keys: &[BlockKey], tokens: &[u32]) -> usize {
    let group = 0;
    pool.peek_prefix(Prefix {
        keys,
        tokens,
        group,
    })
    .hits
}

const KEYS: [BlockKey; 2] = [BlockKey([1, 0, 0, 0]), BlockKey([2, 0, 0, 0])];

/// The trap: the second blocks have the same key and the same tokens.
#[test]
fn equal_tokens_behind_beginnings_that_collide_are_not_a_hit() {
    let pool = BlockPool::new(config(9)).unwrap();
    let (a, b) = ([1, 1, 5, 6], [2, 2, 5, 6]);
    let of_a = publish(&pool, &KEYS, &a);
    assert_eq!(hits(&pool, &KEYS, &b), 0);
    assert_eq!((pool.stats().collisions, pool.stats().orphans), (1, 0));
    // The beginning of b is all that is cached of it, and behind it is only what belongs to a.
    let of_b = publish(&pool, &KEYS[..1], &b);
    assert_eq!(hits(&pool, &KEYS, &b), 1);
    assert_eq!(pool.stats().orphans, 1);
    publish(&pool, &KEYS, &b);
    for (tokens, first) in [(a, of_a[0]), (b, of_b[0])] {
        let mut found = [0; 2];
        let prefix = Prefix {
            keys: &KEYS,
            tokens: &tokens,
            group: 0,
        };
        assert_eq!(pool.match_prefix(prefix, &mut found), 2);
        assert_eq!(found[0], first);
    }
}

#[test]
fn what_continues_a_beginning_that_was_forgotten_and_computed_anew_is_a_miss() {
    let pool = BlockPool::new(config(9)).unwrap();
    let tokens = [1, 1, 5, 6];
    let first = publish(&pool, &KEYS, &tokens);
    assert!(pool.retract(first[0]).unwrap());
    let second = publish(&pool, &KEYS[..1], &tokens);
    assert_eq!(hits(&pool, &KEYS, &tokens), 1);
    assert_eq!((pool.stats().collisions, pool.stats().orphans), (0, 1));
    // Whoever computes it once more is found.
    let mut third = [second[0], 0];
    pool.allocate(&mut third[1..]).unwrap();
    let prefix = Prefix {
        keys: &KEYS,
        tokens: &tokens,
        group: 0,
    };
    assert_eq!(pool.publish_prefix(&third, prefix, 1), Ok(1));
    assert_eq!(hits(&pool, &KEYS, &tokens), 2);
}

#[test]
fn groups_share_no_blocks_whatever_their_keys() {
    let pool = BlockPool::new(config(9)).unwrap();
    let (key, tokens) = (BlockKey([7, 0, 0, 0]), [1, 1]);
    publish(&pool, &[key], &tokens);
    // A key that collides with that of the other group once its own is mixed in.
    let colliding = key.with_group(3);
    let prefix = Prefix {
        keys: &[colliding],
        tokens: &tokens,
        group: 3,
    };
    assert_eq!(colliding.with_group(3), key);
    assert_eq!(pool.peek_prefix(prefix).hits, 0);
}

#[test]
fn blocks_published_one_by_one_continue_the_prefix_they_name() {
    let pool = BlockPool::new(config(9)).unwrap();
    let mut ids = [0; 3];
    pool.allocate(&mut ids).unwrap();
    let first = BlockContent {
        tokens: &[1, 1],
        ..BlockContent::default()
    };
    let (published, name) = pool.publish_named(ids[0], &KEYS[0], &first).unwrap();
    assert_eq!(published, Published::Cached);
    let (published, same) = pool.publish_named(ids[1], &KEYS[0], &first).unwrap();
    assert_eq!((published, same), (Published::Duplicate, name));
    let second = BlockContent {
        tokens: &[5, 6],
        after: Some(same),
        ..BlockContent::default()
    };
    let published = pool.publish_content(ids[2], &KEYS[1], &second);
    assert_eq!(published, Ok(Published::Cached));
    assert_eq!(hits(&pool, &KEYS, &[1, 1, 5, 6]), 2);
    assert_eq!(hits(&pool, &KEYS[1..], &[5, 6]), 0, "it begins no prompt");
}

#[test]
fn publishing_without_all_tokens_of_a_block_is_refused_and_changes_nothing() {
    let pool = BlockPool::new(config(9)).unwrap();
    let mut ids = [0; 2];
    pool.allocate(&mut ids).unwrap();
    let refusal = |found| Err(PoolError::TokensNeeded { found, expected: 2 });
    assert_eq!(
        pool.publish(ids[0], &KEYS[0]).map(drop),
        refusal(0).map(drop)
    );
    let text = pool.publish(ids[0], &KEYS[0]).unwrap_err().to_string();
    assert!(text.contains("0 tokens") && text.contains("takes 2"));
    let content = BlockContent {
        tokens: &[1, 2, 3],
        ..BlockContent::default()
    };
    let published = pool.publish_content(ids[0], &KEYS[0], &content);
    assert_eq!(published.map(drop), refusal(3).map(drop));
    let prefix = Prefix {
        keys: &KEYS,
        tokens: &[1, 1, 5],
        group: 0,
    };
    assert_eq!(pool.publish_prefix(&ids, prefix, 0), refusal(0));
    assert_eq!(pool.stats().published, 0);
}

#[test]
fn events_of_a_pool_that_verifies_tokens_have_room_for_a_block() {
    let build = |event_tokens| {
        BlockPool::new(PoolConfig {
            event_tokens,
            event_capacity: 4,
            ..config(9)
        })
    };
    assert!(build(0).is_ok() && build(2).is_ok() && build(3).is_ok());
    let refusal = build(1).unwrap_err().to_string();
    assert!(refusal.contains("event_tokens"), "{refusal}");
}
