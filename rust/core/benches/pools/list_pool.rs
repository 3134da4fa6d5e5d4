//! What one would write without lock-freedom in mind: a doubly linked list of free blocks, whose
//! links lie in the blocks' own records, and a hash map, behind one lock.
//!
//! It hands out the same ids as a `BlockPool` with `UnhashedFirst` and `FirstWins`; a test holds it
//! to that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use looseleaf::{BlockId, BlockKey};

use super::Pool;
use super::lock::Lock;

/// A block's record. Those that nobody holds are linked to a ring that begins and ends at `END`.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    previous: u32,
    next: u32,
    refs: u32,
    hashed: bool,
}

/// The null block is never free, so its links can be the two ends of the queue.
const END: u32 = 0;

/// Keys are digests already.
#[derive(Default, Debug)]
struct FirstWord(u64);

impl Hasher for FirstWord {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .first_chunk()
            .map_or(0, |word| u64::from_ne_bytes(*word));
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The free queue and the prefix cache.
#[derive(Debug)]
pub struct Lists {
    nodes: Vec<Node>,
    keys: Vec<BlockKey>,
    cached: HashMap<BlockKey, BlockId, BuildHasherDefault<FirstWord>>,
    free: usize,
}

impl Lists {
    fn new(num_blocks: u32) -> Self {
        let size = num_blocks as usize;
        let mut lists = Self {
            nodes: vec![Node::default(); size],
            keys: vec![BlockKey([0; 4]); size],
            cached: HashMap::with_capacity_and_hasher(2 * size, Default::default()),
            free: 0,
        };
        (1..num_blocks).for_each(|id| lists.push_back(id));
        lists
    }

    fn node(&mut self, id: BlockId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    fn link(&mut self, before: BlockId, after: BlockId) {
        self.node(before).next = after;
        self.node(after).previous = before;
    }

    fn insert_after(&mut self, before: BlockId, id: BlockId) {
        let after = self.node(before).next;
        self.link(before, id);
        self.link(id, after);
        self.free += 1;
    }

    fn push_back(&mut self, id: BlockId) {
        let last = self.node(END).previous;
        self.insert_after(last, id);
    }

    fn unlink(&mut self, id: BlockId) {
        let Node { previous, next, .. } = *self.node(id);
        self.link(previous, next);
        self.free -= 1;
    }

    fn allocate(&mut self, out: &mut [BlockId]) -> bool {
        if self.free < out.len() {
            return false;
        }
        let mut first = self.node(END).next;
        for slot in out.iter_mut() {
            *slot = first;
            let node = &mut self.nodes[first as usize];
            node.refs = 1;
            if std::mem::take(&mut node.hashed) {
                self.cached.remove(&self.keys[first as usize]);
            }
            first = node.next;
        }
        self.link(END, first);
        self.free -= out.len();
        true
    }

    fn release(&mut self, ids: &[BlockId]) {
        let mut front = END;
        for id in ids {
            let node = self.node(*id);
            assert!(node.refs > 0, "block {id} is held");
            node.refs -= 1;
            if node.refs > 0 {
                continue;
            }
            if node.hashed {
                self.push_back(*id);
            } else {
                self.insert_after(front, *id);
                front = *id;
            }
        }
    }

    fn match_prefix(&mut self, keys: &[BlockKey], out: &mut [BlockId]) -> usize {
        for (hits, (key, slot)) in keys.iter().zip(&mut *out).enumerate() {
            let Some(&id) = self.cached.get(key) else {
                return hits;
            };
            if self.node(id).refs == 0 {
                self.unlink(id);
            }
            self.node(id).refs += 1;
            *slot = id;
        }
        keys.len().min(out.len())
    }

    fn share(&mut self, ids: &[BlockId]) {
        for id in ids {
            let node = self.node(*id);
            assert!(node.refs > 0, "block {id} is held");
            node.refs += 1;
        }
    }

    fn publish(&mut self, ids: &[BlockId], keys: &[BlockKey]) -> usize {
        let mut cached = 0;
        for (id, key) in ids.iter().zip(keys) {
            if let Entry::Vacant(entry) = self.cached.entry(*key) {
                entry.insert(*id);
                self.keys[*id as usize] = *key;
                self.nodes[*id as usize].hashed = true;
                cached += 1;
            }
        }
        cached
    }
}

/// A pool made of lists behind the lock `L`.
#[derive(Debug)]
pub struct ListPool<L> {
    lists: L,
}

impl<L: Lock<Lists>> Pool for ListPool<L> {
    fn with_blocks(num_blocks: u32) -> Self {
        Self {
            lists: L::new(Lists::new(num_blocks)),
        }
    }

    fn allocate(&self, out: &mut [BlockId]) -> bool {
        self.lists.with(|lists| lists.allocate(out))
    }

    fn release(&self, ids: &[BlockId]) {
        self.lists.with(|lists| lists.release(ids));
    }

    fn match_prefix(&self, keys: &[BlockKey], out: &mut [BlockId]) -> usize {
        self.lists.with(|lists| lists.match_prefix(keys, out))
    }

    fn share(&self, ids: &[BlockId]) {
        self.lists.with(|lists| lists.share(ids));
    }

    fn publish(&self, ids: &[BlockId], keys: &[BlockKey]) -> usize {
        self.lists.with(|lists| lists.publish(ids, keys))
    }
}
