//! What events say about blocks, in arrays that never grow.

use super::BlockContent;
use crate::block_key::{BlockKey, KeyStore, KeyWidth};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A [`BlockContent`] that was read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OwnedContent {
    pub(super) parent: Option<BlockKey>,
    pub(super) tokens: Box<[u32]>,
    pub(super) group: u32,
}

/// The content of so many blocks, or of so many records.
///
/// Stores are Release and loads Acquire, for the same reason as in [`KeyStore`]: a reader of a
/// block's content that sees a word of a newer tenancy also sees that `seq` moved on.
#[derive(Debug)]
pub(super) struct ContentStore {
    parents: KeyStore,
    /// Group (32 bits), whether there is a parent (1), number of tokens (31).
    outlines: Box<[AtomicU64]>,
    tokens: Box<[AtomicU32]>,
    tokens_each: usize,
}

const GROUP_SHIFT: u32 = 32;
const HAS_PARENT: u64 = 1 << 31;
const COUNT_MASK: u64 = HAS_PARENT - 1;

impl ContentStore {
    /// With `tokens_each` of 0, tokens are left out.
    pub(super) fn new(entries: u32, width: KeyWidth, tokens_each: u32) -> Self {
        let tokens = entries as usize * tokens_each as usize;
        Self {
            parents: KeyStore::new(entries, width),
            outlines: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            tokens: (0..tokens).map(|_| AtomicU32::new(0)).collect(),
            tokens_each: tokens_each as usize,
        }
    }

    /// The caller has exclusive use of the entry, a parent that fits, and no more tokens than do.
    pub(super) fn write(&self, at: u32, content: &BlockContent<'_>) {
        let mut count = 0;
        for (cell, token) in self.tokens_of(at).iter().zip(content.tokens) {
            cell.store(*token, Ordering::Release);
            count += 1;
        }
        let mut outline = u64::from(content.group) << GROUP_SHIFT | count;
        if let Some(parent) = &content.parent {
            self.parents.write(at, parent);
            outline |= HAS_PARENT;
        }
        self.outlines[at as usize].store(outline, Ordering::Release);
    }

    /// What is written there; a mix of two contents if somebody writes meanwhile.
    pub(super) fn read(&self, at: u32) -> OwnedContent {
        let outline = self.outlines[at as usize].load(Ordering::Acquire);
        let tokens = &self.tokens_of(at)[..(outline & COUNT_MASK) as usize];
        OwnedContent {
            parent: (outline & HAS_PARENT != 0).then(|| self.parents.read(at)),
            tokens: tokens
                .iter()
                .map(|cell| cell.load(Ordering::Acquire))
                .collect(),
            group: (outline >> GROUP_SHIFT) as u32,
        }
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        self.parents.metadata_bytes() + size_of_val(&*self.outlines) + size_of_val(&*self.tokens)
    }

    fn tokens_of(&self, at: u32) -> &[AtomicU32] {
        let first = at as usize * self.tokens_each;
        &self.tokens[first..first + self.tokens_each]
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn content_is_read_back_as_written_entry_by_entry() {
        let parent = BlockKey([1, 2, 3, 4]);
        let store = ContentStore::new(3, KeyWidth::Bits256, 4);
        let contents = [
            (None, &[][..], 0),
            (Some(parent), &[7, 8, 9, u32::MAX][..], u32::MAX),
            (None, &[5][..], 3),
        ];
        for round in 0..3 {
            for (at, (parent, tokens, group)) in contents.into_iter().enumerate() {
                let at = (at as u32 + round) % 3;
                let content = BlockContent {
                    parent,
                    tokens,
                    group,
                    after: None,
                };
                store.write(at, &content);
            }
            for (at, (parent, tokens, group)) in contents.into_iter().enumerate() {
                let expected = OwnedContent {
                    parent,
                    tokens: tokens.into(),
                    group,
                };
                assert_eq!(store.read((at as u32 + round) % 3), expected);
            }
        }
    }

    #[test]
    fn tokens_are_left_out_where_there_is_no_room_for_any() {
        let store = ContentStore::new(1, KeyWidth::Bits128, 0);
        let content = BlockContent {
            tokens: &[1, 2],
            ..BlockContent::default()
        };
        store.write(0, &content);
        assert_eq!(store.read(0).tokens.len(), 0);
    }
}
