//! KV events: which hashes a pool can be hit for, told to somebody outside, such as a router that
//! sends a prompt to the server that has its prefix.
//!
//! Whoever publishes a block, or takes its hash, writes one record to a bounded ring and goes on:
//! nothing is called back, allocated or waited for. When the ring is full the record is dropped and
//! counted. An [`EventReader`] turns records into [`Event`]s with the meaning of a *set*: replaying
//! them gives the hashes that are resident in the pool. Several blocks can hold one hash; it is
//! stored with the first and removed with the last.
//!
//! A reader that missed a record starts over from the blocks themselves, each of which keeps what
//! an event says about it. Records that are older than what it saw there are recognised by the
//! tenancy number `seq` of the block's state:
//!
//! - publishing and handing out a block move `seq` on, and so does a hit on a free block, while
//!   forgetting a hash on request does not. So a removal of the tenancy that was seen carries a
//!   `seq` that is not lower, and one of an earlier tenancy a lower one;
//! - a block that is just being published is not resident yet, and its record, of the same `seq`,
//!   still counts.
//!
//! A record says *stored* before the block can be hit, hence before anybody can take the hash, so
//! that *removed* comes later in the ring (INV-13). A dropped one is counted after the fact that
//! it was to tell, so that whoever sees the count and starts over sees the fact.

mod content;
mod log;
mod parents_first;
mod reader;
mod residents;
mod ring;

pub(crate) use log::EventLog;
pub use reader::EventReader;

use crate::{BlockKey, PrefixId};

/// What is known of a block beside its key: what a [`Stored`](Event::Stored) event says of it. To
/// find the block none of it is needed, unless the pool verifies tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockContent<'a> {
    /// Key of the block before this one; `None` for the first of a sequence, or if not known.
    pub parent: Option<BlockKey>,
    /// The block's tokens; empty if not known.
    pub tokens: &'a [u32],
    /// The KV-cache group whose layers the block holds.
    pub group: u32,
    /// The prefix that the block continues, in a pool that verifies tokens; `None` for the first
    /// block of a sequence. See [`publish_named`](crate::BlockPool::publish_named).
    pub after: Option<PrefixId>,
}

/// A change in the set of hashes that can be hit. Keys are those of the hash chain, the same for
/// all groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A hash became resident.
    Stored {
        /// The hash.
        key: BlockKey,
        /// Hash of the block before it; `None` for the first of a sequence, or if the publisher did
        /// not say.
        parent: Option<BlockKey>,
        /// The block's tokens; empty if the publisher did not say or the pool does not keep them.
        tokens: Box<[u32]>,
        /// The KV-cache group.
        group: u32,
    },
    /// The last block with that hash lost it.
    Removed {
        /// The hash.
        key: BlockKey,
        /// The KV-cache group.
        group: u32,
    },
    /// No hash is resident but those that are stored from here on.
    Cleared {
        /// Whether events before this one are missing; otherwise the prefix cache was reset.
        resync: bool,
    },
}
