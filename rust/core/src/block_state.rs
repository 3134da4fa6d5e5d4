//! The packed word that is the only authority over a block.
//!
//! | bits  | field     | meaning                                                              |
//! |-------|-----------|----------------------------------------------------------------------|
//! | 0–19  | `refs`    | how many sequences hold the block                                     |
//! | 20–22 | `tag`     | plain, publishing (its hash is being written) or hashed (can be hit)  |
//! | 23    | `in_ring` | the block is free and waits in an eviction ring, not on the stack     |
//! | 24–63 | `seq`     | tenancy: +1 when a free block is acquired and when a publish begins   |
//!
//! `seq` is the ABA guard of every compare-and-swap, the ticket of a queue entry and the number of
//! a tenancy in one: 2^40 steps of one block at 10 ns each are three hours of doing nothing else.

use crate::BlockId;
use crate::sync::{AtomicU64, Ordering};

const REFS_BITS: u32 = 20;
const TAG_BITS: u32 = 3;
const IN_RING_BITS: u32 = 1;
const SEQ_BITS: u32 = 40;
const _: () = assert!(REFS_BITS + TAG_BITS + IN_RING_BITS + SEQ_BITS == u64::BITS);

const TAG_SHIFT: u32 = REFS_BITS;
const IN_RING_SHIFT: u32 = TAG_SHIFT + TAG_BITS;
const SEQ_SHIFT: u32 = IN_RING_SHIFT + IN_RING_BITS;

const REFS_MASK: u64 = (1 << REFS_BITS) - 1;
const TAG_MASK: u64 = ((1 << TAG_BITS) - 1) << TAG_SHIFT;
const IN_RING: u64 = 1 << IN_RING_SHIFT;
const ONE_SEQ: u64 = 1 << SEQ_SHIFT;

const PLAIN: u64 = 0;
const PUBLISHING: u64 = 1 << TAG_SHIFT;
const HASHED: u64 = 2 << TAG_SHIFT;

/// The most references one block can carry.
pub(crate) const MAX_REFS: u32 = REFS_MASK as u32;

/// One value of a block's state word. The transitions below are the only ones there are; each
/// returns the word to swap in and leaves the swap, with its ordering, to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockState(u64);

impl BlockState {
    /// A block that nobody ever held.
    pub(crate) const INITIAL: Self = Self(PLAIN);

    pub(crate) fn refs(self) -> u32 {
        (self.0 & REFS_MASK) as u32
    }

    pub(crate) fn is_free(self) -> bool {
        self.0 & REFS_MASK == 0
    }

    pub(crate) fn is_plain(self) -> bool {
        self.0 & TAG_MASK == PLAIN
    }

    pub(crate) fn is_publishing(self) -> bool {
        self.0 & TAG_MASK == PUBLISHING
    }

    pub(crate) fn is_hashed(self) -> bool {
        self.0 & TAG_MASK == HASHED
    }

    pub(crate) fn in_ring(self) -> bool {
        self.0 & IN_RING != 0
    }

    pub(crate) fn seq(self) -> u64 {
        self.0 >> SEQ_SHIFT
    }

    /// Somebody who may already count on the block takes one more reference.
    pub(crate) fn shared(self) -> Self {
        debug_assert!(!self.is_free() && self.refs() < MAX_REFS);
        Self(self.0 + 1)
    }

    /// One reference goes; `to_ring` says that it was the last and that a ring takes the block.
    pub(crate) fn released(self, to_ring: bool) -> Self {
        debug_assert!(!self.is_free() && (!to_ring || self.refs() == 1));
        Self((self.0 - 1) | if to_ring { IN_RING } else { 0 })
    }

    /// A free block gets its first owner, who may overwrite it: a new tenancy without a hash.
    pub(crate) fn taken(self) -> Self {
        debug_assert!(self.is_free());
        Self((self.0 & !(TAG_MASK | IN_RING)).wrapping_add(ONE_SEQ) | 1)
    }

    /// A free block is held again for what it contains: a new tenancy, the hash stays.
    pub(crate) fn touched(self) -> Self {
        debug_assert!(self.is_free() && self.is_hashed());
        Self((self.0 & !IN_RING).wrapping_add(ONE_SEQ) | 1)
    }

    /// A queued block loses its hash and its place, and stays free: nobody can find it any more,
    /// so whoever makes this swap alone may put it elsewhere.
    pub(crate) fn spilled(self) -> Self {
        debug_assert!(self.is_free() && self.in_ring());
        Self((self.0 & !(TAG_MASK | IN_RING)).wrapping_add(ONE_SEQ))
    }

    /// A holder begins to write the block's hash. The new `seq` makes every look-up that still
    /// compares the previous hash fail.
    pub(crate) fn publishing(self) -> Self {
        debug_assert!(!self.is_free() && self.is_plain());
        Self(self.0.wrapping_add(ONE_SEQ) | PUBLISHING)
    }

    /// The hash goes, everything else stays, so a queued block keeps its place.
    pub(crate) fn retracted(self) -> Self {
        debug_assert!(self.is_hashed());
        Self(self.0 & !TAG_MASK)
    }
}

/// The atomic cell around a [`BlockState`].
#[derive(Debug)]
pub(crate) struct BlockCell(AtomicU64);

impl BlockCell {
    pub(crate) fn new(state: BlockState) -> Self {
        Self(AtomicU64::new(state.0))
    }

    pub(crate) fn load(&self, order: Ordering) -> BlockState {
        BlockState(self.0.load(order))
    }

    /// Overwrites the word. Only for a block that no other thread can change: one just popped
    /// from the clean stack.
    pub(crate) fn store(&self, state: BlockState, order: Ordering) {
        self.0.store(state.0, order);
    }

    /// Swaps `from` for `to`, spuriously failing now and then; on failure returns what is there.
    pub(crate) fn swap(
        &self,
        from: BlockState,
        to: BlockState,
        success: Ordering,
        failure: Ordering,
    ) -> Result<(), BlockState> {
        match self.0.compare_exchange_weak(from.0, to.0, success, failure) {
            Ok(_) => Ok(()),
            Err(found) => Err(BlockState(found)),
        }
    }

    /// publishing → hashed. An addition, not a swap: nobody else leaves the publishing state, and
    /// holders may come and go meanwhile.
    pub(crate) fn finish_publish(&self, order: Ordering) {
        self.0.fetch_add(HASHED - PUBLISHING, order);
    }

    /// publishing → plain, for a hash that found no room.
    pub(crate) fn abandon_publish(&self, order: Ordering) {
        self.0.fetch_sub(PUBLISHING - PLAIN, order);
    }
}

const ID_BITS: u32 = 24;
const TICKET_SEQ_BITS: u32 = 32;
const ID_MASK: u64 = (1 << ID_BITS) - 1;
const TICKET_SEQ_MASK: u64 = (1 << TICKET_SEQ_BITS) - 1;

/// Marks "no block" where an id is stored in 24 bits.
pub(crate) const NO_BLOCK: BlockId = ID_MASK as BlockId;

/// The most blocks a pool can have: ids must stay below [`NO_BLOCK`].
pub(crate) const MAX_BLOCKS: u32 = NO_BLOCK;

/// What a queue entry says: "this block became free in tenancy `seq`". It is live as long as the
/// block's word agrees, and once dead it stays dead, because `seq` only grows (INV-3).
///
/// Only 32 bits of `seq` fit. A stale entry would have to survive 2^32 tenancies of one block to
/// be mistaken for a live one, and even then the block *is* free and queued: it would be taken out
/// of turn, not twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ticket(u64);

impl Ticket {
    pub(crate) const BITS: u32 = ID_BITS + TICKET_SEQ_BITS;

    pub(crate) fn new(id: BlockId, state: BlockState) -> Self {
        debug_assert!(id < NO_BLOCK);
        Self((state.seq() & TICKET_SEQ_MASK) << ID_BITS | u64::from(id))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn id(self) -> BlockId {
        (self.0 & ID_MASK) as BlockId
    }

    pub(crate) fn is_live(self, state: BlockState) -> bool {
        state.is_free() && state.in_ring() && state.seq() & TICKET_SEQ_MASK == self.0 >> ID_BITS
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(refs: u32, tag: u64, in_ring: bool, seq: u64) -> BlockState {
        let in_ring = if in_ring { IN_RING } else { 0 };
        BlockState(seq << SEQ_SHIFT | in_ring | tag | u64::from(refs))
    }

    fn fields(state: BlockState) -> (u32, u64, bool, u64) {
        (
            state.refs(),
            state.0 & TAG_MASK,
            state.in_ring(),
            state.seq(),
        )
    }

    const LAST_SEQ: u64 = (1 << SEQ_BITS) - 1;

    proptest! {
        #[test]
        fn fields_are_read_back_as_written(
            refs in 0..=MAX_REFS,
            tag in prop::sample::select(vec![PLAIN, PUBLISHING, HASHED]),
            in_ring: bool,
            seq in 0..=LAST_SEQ,
        ) {
            prop_assert_eq!(fields(word(refs, tag, in_ring, seq)), (refs, tag, in_ring, seq));
        }

        #[test]
        fn transitions_change_the_fields_they_name_and_no_others(
            refs in 1..MAX_REFS,
            tag in prop::sample::select(vec![PLAIN, HASHED]),
            seq in 0..=LAST_SEQ,
        ) {
            let next = (seq + 1) & LAST_SEQ;
            let held = word(refs, tag, false, seq);
            let free = word(0, tag, true, seq);
            prop_assert_eq!(held.shared(), word(refs + 1, tag, false, seq));
            prop_assert_eq!(held.released(false), word(refs - 1, tag, false, seq));
            prop_assert_eq!(word(1, tag, false, seq).released(true), free);
            prop_assert_eq!(free.taken(), word(1, PLAIN, false, next));
            prop_assert_eq!(free.spilled(), word(0, PLAIN, false, next));
            if tag == HASHED {
                prop_assert_eq!(free.touched(), word(1, HASHED, false, next));
                prop_assert_eq!(free.retracted(), word(0, PLAIN, true, seq));
                prop_assert_eq!(held.retracted(), word(refs, PLAIN, false, seq));
            } else {
                prop_assert_eq!(held.publishing(), word(refs, PUBLISHING, false, next));
            }
        }

        #[test]
        fn a_ticket_is_live_only_for_the_state_it_was_made_for(
            id in 0..NO_BLOCK,
            seq in 0..=LAST_SEQ,
        ) {
            let free = word(0, HASHED, true, seq);
            let ticket = Ticket::new(id, free);
            prop_assert_eq!(Ticket::from_bits(ticket.bits()), ticket);
            prop_assert_eq!(ticket.id(), id);
            prop_assert!(ticket.is_live(free));
            prop_assert!(ticket.is_live(free.retracted()));
            for dead in [free.taken(), free.touched(), free.spilled(), word(0, HASHED, false, seq)] {
                prop_assert!(!ticket.is_live(dead));
            }
            prop_assert!(!ticket.is_live(free.touched().released(true)));
        }
    }

    #[test]
    fn a_publish_ends_hashed_or_plain_whoever_joins_or_leaves_meanwhile() {
        let begun = word(1, PUBLISHING, false, 7);
        let cell = BlockCell::new(begun.shared());
        cell.finish_publish(Ordering::Relaxed);
        assert_eq!(cell.load(Ordering::Relaxed), word(2, HASHED, false, 7));
        let cell = BlockCell::new(begun);
        cell.abandon_publish(Ordering::Relaxed);
        assert_eq!(cell.load(Ordering::Relaxed), word(1, PLAIN, false, 7));
    }
}
