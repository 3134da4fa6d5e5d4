//! Somebody who is told what a pool has, and knows nothing else about it.

use std::collections::BTreeSet;

use looseleaf::{BlockKey, BlockPool, Event};

pub type Hash = (BlockKey, u32);

/// A set of hashes that refuses events which make no sense for a set.
#[derive(Debug, Default)]
pub struct Consumer {
    pub resident: BTreeSet<Hash>,
    /// Every hash that was ever stored, which is what may be named as a parent.
    pub announced: BTreeSet<Hash>,
    pub stored: u64,
    pub removed: u64,
    pub resyncs: u64,
    pub resets: u64,
}

impl Consumer {
    pub fn replay(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Stored { key, group, .. } => {
                    let hash = (*key, *group);
                    assert!(self.resident.insert(hash), "{event:?} is resident already");
                    self.announced.insert(hash);
                    self.stored += 1;
                }
                Event::Removed { key, group } => {
                    let found = self.resident.remove(&(*key, *group));
                    assert!(found, "{event:?} is not resident");
                    self.removed += 1;
                }
                Event::Cleared { resync } => {
                    self.resident.clear();
                    self.resyncs += u64::from(*resync);
                    self.resets += u64::from(!*resync);
                }
            }
        }
    }
}

/// The hashes that the pool's blocks hold, of all that there can be.
pub fn resident_in(pool: &BlockPool, possible: &[Hash]) -> BTreeSet<Hash> {
    let blocks = 0..pool.num_blocks() as u32;
    let named = |found: BlockKey| {
        let mut hashes = possible.iter();
        *hashes
            .find(|(key, group)| key.with_group(*group) == found)
            .expect("a key that was published")
    };
    blocks.filter_map(|id| pool.key_of(id)).map(named).collect()
}
