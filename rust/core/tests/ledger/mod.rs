//! Who should hold which block, and what is in it: kept beside a pool that several threads use, and
//! compared with whatever the pool answers.
//!
//! - A block that is handed out must have no holder (INV-1).
//! - A block that is hit must have the content of its key, and keep it while it is held (INV-5).
//! - An owned block must be writable (INV-10).
//! - When all is given back, all is free (INV-2).
//!
//! The ledger's own words are the standard library's in every build: they are not under test. A
//! holder is struck off before the pool is told, and entered after the pool has answered, so the
//! ledger never claims more than is true.
#![allow(dead_code, reason = "each test binary uses its part")]

mod random_calls;
mod tally;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use looseleaf::{BlockId, BlockKey, BlockPool, PoolConfig, PoolError, Published};

pub use random_calls::Rng;
pub use tally::Tally;

/// What is in a block that no worker ever owned.
const UNKNOWN: u64 = u64::MAX;

/// From here on, a content is the private one of the thread of that number; below, it is that of
/// the key of that number.
const PRIVATE: u64 = 1000;

pub fn key(code: u64) -> BlockKey {
    BlockKey([code, code << 7, 3, code])
}

pub struct Ledger {
    pub pool: BlockPool,
    /// Keys run from 0 to here.
    pub num_keys: u64,
    /// References handed out per block.
    holders: Vec<AtomicI64>,
    /// What was last written to the block.
    content: Vec<AtomicU64>,
    /// What workers still held when they left.
    kept: Mutex<Vec<Reference>>,
    pub seen: Seen,
}

/// How often calls ended one way or the other.
#[derive(Default, Debug)]
pub struct Seen {
    pub allocated: AtomicU64,
    pub none_free: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub rewritten: AtomicU64,
    pub resets: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, SeqCst);
}

/// One reference, and the content that must not change while it is held. `None`: the holder may
/// write.
type Reference = (BlockId, Option<u64>);

impl Ledger {
    pub fn new(config: PoolConfig, num_keys: u64) -> Arc<Self> {
        assert!(num_keys < PRIVATE);
        let pool = BlockPool::new(config).unwrap();
        let blocks = pool.num_blocks();
        Arc::new(Self {
            pool,
            num_keys,
            holders: (0..blocks).map(|_| AtomicI64::new(0)).collect(),
            content: (0..blocks).map(|_| AtomicU64::new(UNKNOWN)).collect(),
            kept: Mutex::default(),
            seen: Seen::default(),
        })
    }

    pub fn worker(self: &Arc<Self>, me: u64) -> Worker {
        Worker {
            ledger: self.clone(),
            me,
            held: vec![],
        }
    }

    fn own(&self, me: u64, id: BlockId) {
        let before = self.holders[id as usize].swap(1, SeqCst);
        assert_eq!(before, 0, "INV-1: block {id} has two owners");
        self.content[id as usize].store(PRIVATE + me, SeqCst);
    }

    fn join(&self, id: BlockId, code: u64) {
        self.holders[id as usize].fetch_add(1, SeqCst);
        self.assert_content(id, code);
    }

    fn assert_content(&self, id: BlockId, code: u64) {
        let content = self.content[id as usize].load(SeqCst);
        assert!(
            content == code || content == UNKNOWN,
            "INV-5: block {id} was found by key {code}, its content is {content}"
        );
    }

    /// Blocks that somebody holds, as far as the ledger knows.
    fn num_held(&self) -> usize {
        let held = |holders: &&AtomicI64| holders.load(SeqCst) > 0;
        self.holders.iter().filter(held).count()
    }

    /// INV-2, as far as it can be seen while others work: no block is both held and counted free.
    pub fn assert_no_block_counts_twice(&self) {
        let free = self.pool.num_free();
        let (held, usable) = (self.num_held(), self.pool.num_usable());
        assert!(
            held + free <= usable,
            "INV-2: {held} held and {free} free of {usable}"
        );
    }

    /// What must hold at every instant; for callers who can look while nobody moves.
    pub fn assert_instant(&self) {
        let pool = &self.pool;
        let (free, visible) = (pool.num_free(), pool.free_order().len());
        assert!(
            visible >= free,
            "INV-4: {free} units to be had, {visible} blocks to be found"
        );
        let ids = 0..pool.num_blocks() as BlockId;
        let held = ids.clone().filter(|id| pool.ref_cnt(*id) > 0).count();
        let usable = pool.num_usable();
        assert!(
            held + free <= usable,
            "INV-2: {held} held and {free} free of {usable}"
        );
        for id in ids {
            if let Some(found) = pool.key_of(id) {
                let code = (0..self.num_keys).find(|code| key(*code) == found);
                self.assert_content(id, code.expect("INV-9: a key that somebody published"));
            }
        }
    }

    /// After all threads have ended: whatever they kept is given back, and nothing may be missing.
    pub fn settle(self: &Arc<Self>) {
        self.pool.check_invariants().unwrap();
        let mut heir = self.worker(0);
        heir.held = std::mem::take(&mut self.kept.lock().unwrap());
        heir.release_all();
        self.pool.check_invariants().unwrap();
        assert_eq!(self.num_held(), 0);
        assert_eq!(self.pool.num_free(), self.pool.num_usable());
        let mut order = self.pool.free_order();
        order.sort_unstable();
        let first = self.pool.num_blocks() - self.pool.num_usable();
        let usable = first as BlockId..self.pool.num_blocks() as BlockId;
        assert!(order.into_iter().eq(usable), "INV-2: each block once");
    }
}

/// One user of the pool, and the references it holds.
pub struct Worker {
    pub ledger: Arc<Ledger>,
    me: u64,
    held: Vec<Reference>,
}

impl Worker {
    pub fn allocate(&mut self, blocks: usize) -> bool {
        let mut ids = vec![0; blocks];
        if self.ledger.pool.allocate(&mut ids).is_err() {
            count(&self.ledger.seen.none_free);
            return false;
        }
        count(&self.ledger.seen.allocated);
        self.own(&ids);
        true
    }

    fn own(&mut self, ids: &[BlockId]) {
        for id in ids {
            self.ledger.own(self.me, *id);
            self.held.push((*id, None));
        }
    }

    /// Takes every block that is free to be had. Nobody else may allocate meanwhile.
    pub fn allocate_all_free(&mut self) {
        let free = self.ledger.pool.num_free();
        assert!(self.allocate(free), "{free} blocks were free");
    }

    pub fn hit(&mut self, code: u64) -> bool {
        let mut ids = [0];
        let hit = self.ledger.pool.match_prefix(&[key(code)], &mut ids) == 1;
        if hit {
            self.hold(ids[0], code);
        } else {
            count(&self.ledger.seen.misses);
        }
        hit
    }

    fn hold(&mut self, id: BlockId, code: u64) {
        self.ledger.join(id, code);
        count(&self.ledger.seen.hits);
        self.held.push((id, Some(code)));
    }

    pub fn admit(&mut self, codes: &[u64], new: usize) -> bool {
        let keys: Vec<_> = codes.iter().map(|code| key(*code)).collect();
        let (mut hits, mut ids) = (vec![0; codes.len()], vec![0; new]);
        let Ok(taken) = self.ledger.pool.admit(&keys, &mut hits, &mut ids) else {
            count(&self.ledger.seen.none_free);
            return false;
        };
        self.own(&ids);
        for (id, code) in hits.iter().zip(codes).take(taken) {
            self.hold(*id, *code);
        }
        true
    }

    /// Writes the content of `code` to a block of ours and publishes it.
    pub fn publish(&mut self, code: u64) {
        if let Some(i) = self.held.iter().position(|(_, code)| code.is_none()) {
            self.write_and_publish(i, code);
        }
    }

    fn write_and_publish(&mut self, i: usize, code: u64) {
        let (id, pool) = (self.held[i].0, &self.ledger.pool);
        let content = &self.ledger.content[id as usize];
        assert!(pool.is_writable(id), "INV-10: block {id} is ours alone");
        content.store(code, SeqCst);
        match pool.publish(id, &key(code)) {
            Ok(Published::Cached) => self.held[i].1 = Some(code),
            Ok(_) => content.store(PRIVATE + self.me, SeqCst),
            Err(error) => panic!("publish of an owned block: {error}"),
        }
    }

    /// Takes a published block back, if nobody else holds it, and publishes other content.
    pub fn rewrite(&mut self, code: u64) {
        let Some(i) = self.held.iter().position(|(_, code)| code.is_some()) else {
            return;
        };
        let (id, pool) = (self.held[i].0, &self.ledger.pool);
        let ours = self.held.iter().filter(|(other, _)| *other == id).count();
        if ours == 1 && pool.retract(id).unwrap() && pool.is_writable(id) {
            count(&self.ledger.seen.rewritten);
            self.held[i].1 = None;
            self.write_and_publish(i, code);
        }
    }

    /// Takes one more reference on a published block that we hold.
    pub fn share(&mut self) {
        let published = self.held.iter().find(|(_, code)| code.is_some());
        if let Some((id, Some(code))) = published.copied() {
            self.ledger.pool.share(&[id]).unwrap();
            self.ledger.join(id, code);
            self.held.push((id, Some(code)));
        }
    }

    /// Makes the pool forget what is in a block, whoever holds it.
    pub fn retract(&mut self, id: BlockId) {
        self.ledger.pool.retract(id).unwrap();
    }

    /// Makes the pool forget everything, if it can.
    pub fn reset(&mut self) {
        match self.ledger.pool.reset_prefix_cache() {
            Ok(()) => count(&self.ledger.seen.resets),
            Err(PoolError::InUse { .. }) => {}
            Err(error) => panic!("reset: {error}"),
        }
    }

    pub fn release_all(&mut self) {
        self.release_from(0);
    }

    /// Gives back all but the first `keep` references, the last one first.
    pub fn release_from(&mut self, keep: usize) {
        let mut rest = vec![];
        for (id, code) in self.held.drain(keep.min(self.held.len())..) {
            if let Some(code) = code {
                self.ledger.assert_content(id, code);
            }
            self.ledger.holders[id as usize].fetch_sub(1, SeqCst);
            rest.push(id);
        }
        // A worker may hold one block several times; each call names it once.
        while !rest.is_empty() {
            let mut once: Vec<BlockId> = vec![];
            rest.retain(|id| {
                let again = once.contains(id);
                if !again {
                    once.push(*id);
                }
                again
            });
            once.reverse();
            self.ledger.pool.release(&once).unwrap();
        }
    }

    /// Leaves everything that is held to [`Ledger::settle`].
    pub fn leave(self) {
        self.ledger.kept.lock().unwrap().extend(self.held);
    }
}
