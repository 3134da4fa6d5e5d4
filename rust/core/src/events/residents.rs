//! What a reader knows: which block holds which hash, and how many blocks hold each.

use std::collections::HashMap;

use super::Event;
use super::content::OwnedContent;
use crate::{BlockId, BlockKey};

/// A hash, and the KV-cache group that it was stored for.
pub(super) type Hash = (BlockKey, u32);

#[derive(Debug)]
pub(super) struct Residents {
    blocks: Box<[Known]>,
    copies: HashMap<Hash, u32>,
}

/// The latest that was heard of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Records of a lower `seq` are old.
    seq: u64,
    hash: Option<Hash>,
}

impl Residents {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            blocks: vec![Known::default(); num_blocks].into(),
            copies: HashMap::new(),
        }
    }

    /// Whether a record said that the block is stored in the tenancy that began with `seq`.
    pub(super) fn is_stored_since(&self, id: BlockId, seq: u64) -> bool {
        let known = &self.blocks[id as usize];
        known.hash.is_some() && known.seq == seq
    }

    /// A record says that the block holds a hash.
    pub(super) fn stored(
        &mut self,
        id: BlockId,
        seq: u64,
        key: BlockKey,
        content: OwnedContent,
        out: &mut Vec<Event>,
    ) {
        let known = &mut self.blocks[id as usize];
        if seq <= known.seq {
            return;
        }
        let hash = (key, content.group);
        // Whoever took the hash before may not have written its record yet.
        let before = std::mem::replace(
            known,
            Known {
                seq,
                hash: Some(hash),
            },
        );
        // First, so that nothing is reported if both are the same.
        let is_first = self.add(hash);
        if let Some(hash) = before.hash {
            self.forget(hash, out);
        }
        if is_first {
            out.push(stored_event(key, content));
        }
    }

    /// A record says that the block lost a hash.
    pub(super) fn removed(&mut self, id: BlockId, seq: u64, out: &mut Vec<Event>) {
        let known = &mut self.blocks[id as usize];
        if seq < known.seq {
            return;
        }
        known.seq = seq;
        if let Some(hash) = known.hash.take() {
            self.forget(hash, out);
        }
    }

    /// Forgets all hashes, so that [`found`](Self::found) can be called for every block.
    pub(super) fn start_over(&mut self) {
        self.copies.clear();
    }

    /// Replaces what is known of a block; says whether it is the first with that hash.
    pub(super) fn found(&mut self, id: BlockId, seq: u64, hash: Option<Hash>) -> bool {
        self.blocks[id as usize] = Known { seq, hash };
        hash.is_some_and(|hash| self.add(hash))
    }

    fn add(&mut self, hash: Hash) -> bool {
        let copies = self.copies.entry(hash).or_insert(0);
        *copies += 1;
        *copies == 1
    }

    fn forget(&mut self, hash: Hash, out: &mut Vec<Event>) {
        let copies = self.copies.get_mut(&hash).expect("it was added");
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&hash);
            let (key, group) = hash;
            out.push(Event::Removed { key, group });
        }
    }
}

pub(super) fn stored_event(key: BlockKey, content: OwnedContent) -> Event {
    Event::Stored {
        key,
        parent: content.parent,
        tokens: content.tokens,
        group: content.group,
    }
}
