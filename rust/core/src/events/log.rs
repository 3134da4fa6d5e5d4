//! What the pool writes down for a reader of events.

use super::BlockContent;
use super::content::{ContentStore, OwnedContent};
use super::ring::EventRing;
use crate::block_key::BlockKey;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BlockId, PoolConfig};

#[derive(Debug)]
pub(crate) struct EventLog {
    pub(super) ring: EventRing,
    /// What each hashed block holds, for a reader that must start over. Written while the block is
    /// being published, like its key.
    contents: ContentStore,
    /// Records that found the ring full. Counted (Release) after the fact that each was to tell: a
    /// reader that sees the count (Acquire) sees the fact in the blocks' states.
    lost: AtomicU64,
    /// How often the prefix cache was reset; ordered like `lost`.
    resets: AtomicU64,
    /// 1 while there is a reader.
    taken: AtomicU32,
}

/// How often a reader had to start over so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Upsets {
    pub(super) lost: u64,
    pub(super) resets: u64,
}

impl EventLog {
    /// None if the pool is to keep no events.
    pub(crate) fn new(config: &PoolConfig) -> Option<Box<Self>> {
        let (width, tokens) = (config.key_width, config.event_tokens);
        (config.event_capacity != 0).then(|| {
            Box::new(Self {
                ring: EventRing::new(config.event_capacity, width, tokens),
                contents: ContentStore::new(config.num_blocks, width, tokens),
                lost: AtomicU64::new(0),
                resets: AtomicU64::new(0),
                taken: AtomicU32::new(0),
            })
        })
    }

    /// A block is about to become `hashed` under `key`, in the tenancy `seq`. If this returns
    /// false, the caller must [lose](Self::lose) the record as soon as the block is.
    #[must_use]
    pub(crate) fn stored(
        &self,
        id: BlockId,
        seq: u64,
        key: &BlockKey,
        content: &BlockContent<'_>,
    ) -> bool {
        self.contents.write(id, content);
        self.ring.push_stored(id, seq, key, content)
    }

    /// The caller has taken the block's hash; the state that it replaced had the number `seq`.
    pub(crate) fn removed(&self, id: BlockId, seq: u64) {
        if !self.ring.push_removed(id, seq) {
            self.lose();
        }
    }

    /// A record was dropped, and what it tells can be seen in the block's state.
    #[cold]
    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Release);
    }

    /// Hashes went without a record each.
    #[cold]
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn num_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        self.ring.metadata_bytes() + self.contents.metadata_bytes()
    }

    pub(super) fn content_of(&self, id: BlockId) -> OwnedContent {
        self.contents.read(id)
    }

    pub(super) fn upsets(&self) -> Upsets {
        Upsets {
            lost: self.lost.load(Ordering::Acquire),
            resets: self.resets.load(Ordering::Acquire),
        }
    }

    /// Makes the caller the reader, unless there is one. Acquire: takes over where the one before
    /// stopped.
    pub(super) fn take(&self) -> bool {
        self.taken
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    pub(super) fn give_back(&self) {
        self.taken.store(0, Ordering::Release);
    }
}
