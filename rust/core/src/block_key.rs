//! Keys of cached blocks, and where the pool keeps them.

use std::hash::Hasher;

use crate::BlockId;
use crate::sync::{AtomicU64, Ordering};

/// What identifies a block's content: a digest over everything that its keys and values depend on,
/// as four words. A 32-byte digest fills them big-endian, in order; a 16-byte digest fills the
/// first two and leaves words 2 and 3 zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BlockKey(pub [u64; 4]);

/// Odd, so that distinct groups stay distinct after the multiplication.
const GROUP_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl BlockKey {
    /// The key of a 32-byte digest.
    pub fn from_bytes(digest: &[u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(digest.as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }

    /// The digest again; a 16-byte digest is followed by 16 zero bytes.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut digest = [0; 32];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *bytes = word.to_be_bytes();
        }
        digest
    }

    /// The key under which a KV-cache group keeps its block of the same tokens. Group 0 keeps the
    /// key as it is. The hash chain goes on from the key without a group, which mixing the same
    /// group in once more gives back.
    #[must_use]
    pub fn with_group(self, group: u32) -> Self {
        if group == 0 {
            return self;
        }
        let last = if self.fits(KeyWidth::Bits128) { 1 } else { 3 };
        let mut words = self.0;
        words[last] ^= u64::from(group).wrapping_mul(GROUP_FACTOR);
        Self(words)
    }

    /// Whether nothing is lost when only this many bits are kept.
    pub fn fits(&self, width: KeyWidth) -> bool {
        match width {
            KeyWidth::Bits128 => self.0[2] == 0 && self.0[3] == 0,
            KeyWidth::Bits256 => true,
        }
    }
}

/// Hashes keys for a map. They are digests, so folding their words is enough.
#[derive(Clone, Default, Debug)]
pub(crate) struct KeyFold(u64);

impl Hasher for KeyFold {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks().0 {
            self.0 = self.0.rotate_left(16) ^ u64::from_ne_bytes(*word);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// How many bits of a key the pool stores and compares per block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyWidth {
    /// 16 bytes a block: keyed BLAKE3 and XXH3.
    Bits128,
    /// 32 bytes a block: SHA-256.
    #[default]
    Bits256,
}

impl KeyWidth {
    /// The number itself.
    pub fn bits(self) -> u32 {
        match self {
            Self::Bits128 => 128,
            Self::Bits256 => 256,
        }
    }
}

/// The key of every block, meaningful while the block's state says `hashed`.
///
/// Stores are Release and loads Acquire: a reader that sees a word of a newer tenancy then also
/// sees that the tenancy's `seq` moved on, so the compare-and-swap that would have relied on the
/// word fails.
#[derive(Debug)]
pub(crate) enum KeyStore {
    /// Two words a block.
    Narrow(Box<[[AtomicU64; 2]]>),
    /// Four words a block, aligned so that none straddles two cache lines.
    Wide(Box<[Wide]>),
}

#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct Wide([AtomicU64; 4]);

impl KeyStore {
    pub(crate) fn new(num_blocks: u32, width: KeyWidth) -> Self {
        fn zeros<const N: usize>() -> [AtomicU64; N] {
            std::array::from_fn(|_| AtomicU64::new(0))
        }
        match width {
            KeyWidth::Bits128 => Self::Narrow((0..num_blocks).map(|_| zeros()).collect()),
            KeyWidth::Bits256 => Self::Wide((0..num_blocks).map(|_| Wide(zeros())).collect()),
        }
    }

    pub(crate) fn width(&self) -> KeyWidth {
        match self {
            Self::Narrow(_) => KeyWidth::Bits128,
            Self::Wide(_) => KeyWidth::Bits256,
        }
    }

    /// The key must fit the width.
    pub(crate) fn write(&self, id: BlockId, key: &BlockKey) {
        for (cell, word) in self.of(id).iter().zip(key.0) {
            cell.store(word, Ordering::Release);
        }
    }

    pub(crate) fn read(&self, id: BlockId) -> BlockKey {
        let mut words = [0; 4];
        for (word, cell) in words.iter_mut().zip(self.of(id)) {
            *word = cell.load(Ordering::Acquire);
        }
        BlockKey(words)
    }

    pub(crate) fn matches(&self, id: BlockId, key: &BlockKey) -> bool {
        let mut words = self.of(id).iter().zip(key.0);
        words.all(|(cell, word)| cell.load(Ordering::Acquire) == word) && key.fits(self.width())
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        match self {
            Self::Narrow(keys) => size_of_val(&**keys),
            Self::Wide(keys) => size_of_val(&**keys),
        }
    }

    fn of(&self, id: BlockId) -> &[AtomicU64] {
        match self {
            Self::Narrow(keys) => &keys[id as usize],
            Self::Wide(keys) => &keys[id as usize].0,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The exception is a 256-bit key whose last two words look as if a group were all that
        /// they hold; of digests one in 2^128 does.
        #[test]
        fn mixing_a_group_in_twice_gives_the_key_back(words: [u64; 4], group: u32, narrow: bool) {
            let [a, b, c, d] = words;
            let key = BlockKey(if narrow { [a, b, 0, 0] } else { [a, b, c | 1, d] });
            prop_assert_eq!(key.with_group(group).with_group(group), key);
            prop_assert_eq!(key.with_group(group) == key, group == 0);
        }
    }
}
