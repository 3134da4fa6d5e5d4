//! What can go wrong, with the numbers that say why.

use std::error::Error;
use std::fmt;

use crate::BlockId;

/// An allocation asked for more blocks than there are free ones. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfBlocks {
    /// Blocks the call needed, free prefix hits included.
    pub asked: usize,
    /// Blocks that could have been had, cached ones included.
    pub free: usize,
    /// Of the free blocks, those that still held a reusable prefix.
    pub cached: usize,
    /// Blocks held by sequences or reserved by calls in progress.
    pub pinned: usize,
    /// Blocks of the pool, the null block included.
    pub total: usize,
}

impl fmt::Display for OutOfBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            asked,
            free,
            cached,
            pinned,
            total,
        } = self;
        write!(
            f,
            "asked for {asked} blocks, {free} free ({cached} of them cached), {pinned} in use, \
             pool of {total}"
        )
    }
}

impl Error for OutOfBlocks {}

/// A call that the pool refused. It changed nothing, unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// The id is not one of the pool's.
    UnknownBlock {
        /// The id.
        id: BlockId,
        /// Blocks of the pool.
        total: usize,
    },
    /// The null block belongs to nobody.
    NullBlock,
    /// A release of a block that nobody holds.
    ///
    /// If two calls release the same reference *at the same time*, each found the block held when
    /// it checked its list; the one that comes second reports this after having released the rest
    /// of its list.
    DoubleRelease {
        /// The block.
        id: BlockId,
    },
    /// A share or a publish of a block that nobody holds.
    FreeBlock {
        /// The block.
        id: BlockId,
    },
    /// One call named the same block twice.
    DuplicateId {
        /// The block.
        id: BlockId,
    },
    /// The block already carries a hash, or is just being given one.
    AlreadyPublished {
        /// The block.
        id: BlockId,
    },
    /// The last reference cannot go while another thread is writing the block's hash.
    PublishInProgress {
        /// The block.
        id: BlockId,
    },
    /// The block carries as many references as can be counted.
    RefCountOverflow {
        /// The block.
        id: BlockId,
        /// The most references a block can carry.
        max: u32,
    },
    /// The key has more bits than the pool keeps.
    KeyTooWide {
        /// Bits kept per key.
        bits: u32,
    },
    /// More tokens than the pool's events carry.
    TooManyTokens {
        /// Tokens given.
        found: usize,
        /// The most there can be.
        max: usize,
    },
    /// A block that is not published with all its tokens, in a pool that verifies them.
    TokensNeeded {
        /// Tokens given.
        found: usize,
        /// Tokens of a block.
        expected: usize,
    },
    /// The pool was built without events.
    NoEvents,
    /// Somebody else reads the pool's events.
    EventsTaken,
    /// The prefix cache can only be reset while no block is held.
    InUse {
        /// Blocks held.
        blocks: usize,
    },
    /// The pool cannot be built like that.
    InvalidConfig {
        /// The field at fault.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownBlock { id, total } => {
                write!(f, "block {id} does not exist in a pool of {total}")
            }
            Self::NullBlock => write!(f, "block 0 is the null block and belongs to nobody"),
            Self::DoubleRelease { id } => write!(f, "block {id} is released but nobody holds it"),
            Self::FreeBlock { id } => write!(f, "block {id} is free: nobody holds it"),
            Self::DuplicateId { id } => write!(f, "block {id} is named twice in one call"),
            Self::AlreadyPublished { id } => write!(f, "block {id} already carries a hash"),
            Self::PublishInProgress { id } => {
                write!(
                    f,
                    "block {id} cannot be given up while its hash is being written"
                )
            }
            Self::RefCountOverflow { id, max } => {
                write!(
                    f,
                    "block {id} already has {max} references, the most it can carry"
                )
            }
            Self::KeyTooWide { bits } => write!(f, "the key does not fit the pool's {bits} bits"),
            Self::TooManyTokens { found, max } => {
                write!(f, "a block of {found} tokens, but events carry {max}")
            }
            Self::TokensNeeded { found, expected } => {
                write!(
                    f,
                    "a block is published with {found} tokens, but the pool verifies tokens: it takes {expected}"
                )
            }
            Self::NoEvents => write!(f, "event_capacity is 0: the pool was built without events"),
            Self::EventsTaken => write!(f, "the pool's events are being read elsewhere"),
            Self::InUse { blocks } => {
                write!(
                    f,
                    "the prefix cache cannot be reset while {blocks} blocks are in use"
                )
            }
            Self::InvalidConfig {
                field,
                value,
                allowed,
            } => {
                write!(f, "{field} is {value}, allowed is {allowed}")
            }
        }
    }
}

impl Error for PoolError {}
