//! Real threads on tiny pools: an ownership table watches that no block has two exclusive owners
//! (INV-1), that a hit holds the content it was found by (INV-5), and that nothing is lost (INV-2);
//! the counters show that the rare branches were taken on the way.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use looseleaf::{
    BlockId, BlockKey, BlockPool, DuplicatePolicy, FreeOrder, PoolConfig, PoolError, PoolStats,
    Published, Tuning,
};

const THREADS: u64 = 4;
const ROUNDS: u64 = 60_000;
const NUM_KEYS: u64 = 12;

/// Content codes: below `NUM_KEYS` the block was published under that key; from `PRIVATE` on it
/// belongs to the thread of that number.
const PRIVATE: u64 = 1000;

fn key(code: u64) -> BlockKey {
    BlockKey([code, code << 7, 3, code])
}

/// A small multiplicative generator; the test needs variety, not quality.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % bound
    }
}

struct Ledger {
    pool: BlockPool,
    /// References handed out per block.
    holders: Vec<AtomicI64>,
    /// What was last written to the block.
    content: Vec<AtomicU64>,
}

/// One reference, and the content that must not change while it is held. `None`: the holder may
/// write.
type Reference = (BlockId, Option<u64>);

impl Ledger {
    fn new(pool: BlockPool) -> Self {
        let blocks = pool.num_blocks();
        Self {
            pool,
            holders: (0..blocks).map(|_| AtomicI64::new(0)).collect(),
            content: (0..blocks).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    fn allocate(&self, me: u64, held: &mut Vec<Reference>, count: usize) {
        let mut ids = vec![0; count];
        if self.pool.allocate(&mut ids).is_ok() {
            self.own(me, held, &ids);
        }
    }

    fn own(&self, me: u64, held: &mut Vec<Reference>, ids: &[BlockId]) {
        for id in ids {
            assert_eq!(
                self.holders[*id as usize].swap(1, SeqCst),
                0,
                "block {id} has two owners"
            );
            self.content[*id as usize].store(PRIVATE + me, SeqCst);
            held.push((*id, None));
        }
    }

    fn hit(&self, held: &mut Vec<Reference>, id: BlockId, code: u64) {
        self.holders[id as usize].fetch_add(1, SeqCst);
        assert_eq!(
            self.content[id as usize].load(SeqCst),
            code,
            "block {id} was hit for {code}"
        );
        held.push((id, Some(code)));
    }

    fn admit(&self, me: u64, held: &mut Vec<Reference>, first: u64, new: usize) {
        let codes = [
            first % NUM_KEYS,
            (first + 1) % NUM_KEYS,
            (first + 2) % NUM_KEYS,
        ];
        let (mut hits, mut ids) = ([0; 3], vec![0; new]);
        if let Ok(taken) = self.pool.admit(&codes.map(key), &mut hits, &mut ids) {
            self.own(me, held, &ids);
            for (id, code) in hits.iter().zip(codes).take(taken) {
                self.hit(held, *id, code);
            }
        }
    }

    fn release(&self, references: &[Reference]) {
        let mut rest: Vec<BlockId> = references.iter().map(|(id, _)| *id).collect();
        for (id, code) in references {
            if let Some(code) = code {
                assert_eq!(
                    self.content[*id as usize].load(SeqCst),
                    *code,
                    "block {id} changed"
                );
            }
            self.holders[*id as usize].fetch_sub(1, SeqCst);
        }
        // A thread may hold one block several times; each call names it once.
        while !rest.is_empty() {
            let mut once = rest.clone();
            once.sort_unstable();
            once.dedup();
            once.iter().for_each(|id| {
                rest.swap_remove(rest.iter().position(|other| other == id).unwrap());
            });
            once.reverse();
            self.pool.release(&once).unwrap();
        }
    }

    /// Writes new content to a block of our own and publishes it.
    fn publish(&self, me: u64, reference: &mut Reference, code: u64) {
        let id = reference.0;
        assert!(self.pool.is_writable(id), "block {id} is ours alone");
        self.content[id as usize].store(code, SeqCst);
        match self.pool.publish(id, &key(code)) {
            Ok(Published::Cached) => reference.1 = Some(code),
            Ok(_) => self.content[id as usize].store(PRIVATE + me, SeqCst),
            Err(error) => panic!("publish of an owned block: {error}"),
        }
    }

    /// Takes back a published block if nobody else holds it.
    fn rewrite(&self, me: u64, held: &mut [Reference], i: usize, code: u64) {
        let id = held[i].0;
        let ours = held.iter().filter(|(other, _)| *other == id).count();
        if ours == 1 && self.pool.retract(id).unwrap() && self.pool.is_writable(id) {
            held[i].1 = None;
            self.publish(me, &mut held[i], code);
        }
    }
}

fn work(ledger: &Ledger, me: u64, seed: u64) {
    let pool = &ledger.pool;
    let blocks = pool.num_blocks() as u64;
    let mut rng = Rng(seed);
    let mut held: Vec<Reference> = vec![];
    for _ in 0..ROUNDS {
        let code = rng.below(NUM_KEYS);
        match rng.below(16) {
            0..=1 => ledger.allocate(me, &mut held, 1 + rng.below(3) as usize),
            2 => ledger.admit(me, &mut held, code, rng.below(3) as usize),
            3..=6 => {
                let mut ids = [0];
                if pool.match_prefix(&[key(code)], &mut ids) == 1 {
                    ledger.hit(&mut held, ids[0], code);
                }
            }
            7..=9 => {
                if let Some(own) = held.iter_mut().find(|reference| reference.1.is_none()) {
                    ledger.publish(me, own, code);
                }
            }
            10 => {
                if let Some(i) = held.iter().position(|reference| reference.1.is_some()) {
                    ledger.rewrite(me, &mut held, i, code);
                }
            }
            11 => {
                if let Some((id, Some(code))) = held.first().copied() {
                    pool.share(&[id]).unwrap();
                    ledger.hit(&mut held, id, code);
                }
            }
            12 => {
                // Anybody may retract anything. Ours may then look private to nobody but us, so
                // only blocks that others publish are worth the trouble.
                let id = 1 + rng.below(blocks - 1) as BlockId;
                pool.retract(id).unwrap();
            }
            _ => {
                let keep = rng.below(held.len() as u64 + 1) as usize;
                let released: Vec<_> = held.drain(keep..).collect();
                ledger.release(&released);
            }
        }
    }
    ledger.release(&held);
}

fn stress(num_blocks: u32, free_order: FreeOrder, duplicate_policy: DuplicatePolicy) -> PoolStats {
    let tuning = Tuning {
        young_slots: Some(4),
        // Too few for all blocks, so that releases spill.
        aged_slots: Some(num_blocks / 2 + 1),
        young_threshold: Some(1),
        lazy_close: Some(2),
        ..Tuning::default()
    };
    let config = PoolConfig {
        free_order,
        duplicate_policy,
        tuning,
        ..PoolConfig::new(num_blocks)
    };
    let ledger = Ledger::new(BlockPool::new(config).unwrap());
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            let (ledger, start) = (&ledger, &start);
            scope.spawn(move || {
                start.wait();
                work(ledger, me, 0x2545_F491_4F6C_DD1D ^ (me + 1));
            });
        }
    });
    ledger.pool.check_invariants().unwrap();
    assert_eq!(ledger.pool.num_free(), ledger.pool.num_usable());
    ledger.pool.stats()
}

#[test]
fn no_block_is_lost_or_given_twice_and_the_rare_branches_happen() {
    let (mut moves, mut swaps, mut spills, mut evictions) = (0, 0, 0, 0);
    for free_order in [FreeOrder::UnhashedFirst, FreeOrder::AppendAll] {
        for policy in [DuplicatePolicy::FirstWins, DuplicatePolicy::KeepAll] {
            for num_blocks in [5, 12, 40] {
                let stats = stress(num_blocks, free_order, policy);
                moves += stats.moves;
                swaps += stats.role_swaps;
                spills += stats.spills;
                evictions += stats.evictions;
            }
        }
    }
    let taken = format!("{moves} moves, {swaps} swaps, {spills} spills, {evictions} evictions");
    assert!(
        moves > 1000 && swaps > 100 && spills > 100 && evictions > 1000,
        "{taken}"
    );
}

#[test]
fn of_two_calls_that_release_one_reference_one_succeeds() {
    let pool = BlockPool::new(PoolConfig::new(4)).unwrap();
    for round in 0..20_000_u64 {
        let mut ids = [0];
        pool.allocate(&mut ids).unwrap();
        if round % 2 == 0 {
            pool.publish(ids[0], &key(round)).unwrap();
        }
        let start = Barrier::new(2);
        let results = std::thread::scope(|scope| {
            let release = || {
                start.wait();
                pool.release(&ids)
            };
            let other = scope.spawn(release);
            [release(), other.join().unwrap()]
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        assert!(results.contains(&Err(PoolError::DoubleRelease { id: ids[0] })));
        if round % 1000 == 0 {
            pool.check_invariants().unwrap();
        }
    }
}
