//! One bounded queue of tickets. Three of them make the [eviction queue](crate::eviction_queue).
//!
//! Entries are never removed from the middle: a ticket dies when its block's state moves on, and is
//! stepped over later. The head may only pass an entry that is dead for good, or copied elsewhere,
//! or claimed by whoever moves the head; and never a slot that was claimed but not yet written.

use crate::block_state::Ticket;
use crate::sync::{AtomicU64, CachePadded, Ordering};

const LAP_BITS: u32 = u64::BITS - Ticket::BITS;
const LAP_MASK: u64 = (1 << LAP_BITS) - 1;
const INDEX_BITS: u32 = 26;

/// The most slots a ring can have. What is left of a position counts laps: 2^38 of them, at 256
/// slots and 20 ns an entry, are two weeks of doing nothing else.
pub(crate) const MAX_SLOTS: u32 = 1 << INDEX_BITS;

/// A place in the endless sequence of entries: how often the slots were gone through, and the slot.
/// Keeping the two apart lets the capacity be exact, not a power of two, with no division.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Position(u64);

impl Position {
    /// Laps count from 1, so that a slot that was never written (0) belongs to no lap.
    const START: Self = Self(1 << INDEX_BITS);

    fn lap(self) -> u64 {
        self.0 >> INDEX_BITS
    }

    fn index(self) -> u64 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }
}

#[derive(Debug)]
pub(crate) struct EvictionRing {
    /// Low 8 bits of the lap over the ticket. Eight bits suffice: an unwritten slot stops the
    /// head, and with it the tail, so a slot is never more than one lap behind.
    slots: Box<[AtomicU64]>,
    /// First entry not closed over.
    head: CachePadded<AtomicU64>,
    /// First entry not claimed.
    tail: CachePadded<AtomicU64>,
}

impl EvictionRing {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            slots: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            head: CachePadded(AtomicU64::new(Position::START.0)),
            tail: CachePadded(AtomicU64::new(Position::START.0)),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// `count` places after `position`; `count` is at most the capacity.
    pub(crate) fn after(&self, position: Position, count: u64) -> Position {
        let index = position.index() + count;
        if index < self.capacity() {
            Position(position.0 + count)
        } else {
            Position(((position.lap() + 1) << INDEX_BITS) | (index - self.capacity()))
        }
    }

    /// How many places `to` is after `from`.
    pub(crate) fn distance(&self, from: Position, to: Position) -> u64 {
        (to.lap() - from.lap()) * self.capacity() + to.index() - from.index()
    }

    /// Acquire: a reader that sees a head beyond an entry also sees the copy that allowed the
    /// head to move, and so does not miss the entry in both places for good.
    pub(crate) fn head(&self) -> Position {
        Position(self.head.load(Ordering::Acquire))
    }

    /// Relaxed: a tail only says how far to look. That the entries behind granted units are seen
    /// follows from the units (their release happens after the claim), not from the tail.
    pub(crate) fn tail(&self) -> Position {
        Position(self.tail.load(Ordering::Relaxed))
    }

    /// Entries between head and tail, dead ones included; exact only at quiescence.
    pub(crate) fn len(&self) -> u64 {
        let head = self.head();
        let tail = self.tail();
        if head < tail {
            self.distance(head, tail)
        } else {
            0
        }
    }

    /// Claims `count` places in a row, or none.
    pub(crate) fn claim(&self, count: u64) -> Option<Position> {
        if count > self.capacity() {
            return None;
        }
        let mut tail = self.tail();
        loop {
            let head = self.head();
            if tail < head {
                tail = self.tail();
                continue;
            }
            if self.distance(head, tail) + count > self.capacity() {
                return None;
            }
            // Relaxed: only shares out places. The slot's own store publishes the entry.
            match self.tail.compare_exchange_weak(
                tail.0,
                self.after(tail, count).0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(tail),
                Err(found) => tail = Position(found),
            }
        }
    }

    /// Writes the entry of a claimed place. Release: a scanner that sees the ticket also sees the
    /// state change that made it live, so any other state it then reads is a later one (INV-3).
    pub(crate) fn write(&self, place: Position, ticket: Ticket) {
        let entry = (place.lap() & LAP_MASK) << Ticket::BITS | ticket.bits();
        self.slots[place.index() as usize].store(entry, Ordering::Release);
    }

    /// [`write`](Self::write)s the entries of places claimed in a row.
    pub(crate) fn write_run(&self, first: Position, tickets: &[Ticket]) {
        let mut place = first;
        for ticket in tickets {
            self.write(place, *ticket);
            place = self.after(place, 1);
        }
    }

    /// The ticket at `place`; `None` if it is claimed but not written yet, or if the slot already
    /// belongs to the next lap (the head has then moved past `place`).
    pub(crate) fn read(&self, place: Position) -> Option<Ticket> {
        let entry = self.slots[place.index() as usize].load(Ordering::Acquire);
        (entry >> Ticket::BITS == place.lap() & LAP_MASK).then(|| Ticket::from_bits(entry))
    }

    /// Closes over the entries before `to`, if the head is still at `from`. Release: see
    /// [`head`](Self::head), and a claimer that reuses the slots must not overtake our reads.
    pub(crate) fn close(&self, from: Position, to: Position) -> bool {
        self.head
            .compare_exchange(from.0, to.0, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// Everything between head and tail; `None` for places not written. Only at quiescence.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Option<Ticket>> + '_ {
        let (mut place, tail) = (self.head(), self.tail());
        std::iter::from_fn(move || {
            (place < tail).then(|| {
                let entry = self.read(place);
                place = self.after(place, 1);
                entry
            })
        })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn ticket(id: u64) -> Ticket {
        Ticket::from_bits(id)
    }

    #[test]
    fn entries_come_out_in_order_over_many_laps_of_any_capacity() {
        for capacity in [1, 2, 3, 7] {
            let ring = EvictionRing::new(capacity);
            for i in 0..3000 {
                let place = ring.claim(1).unwrap();
                assert_eq!(ring.read(place), None, "claimed, not written");
                ring.write(place, ticket(i));
                if ring.len() < u64::from(capacity) {
                    continue;
                }
                assert_eq!(ring.claim(1), None);
                let head = ring.head();
                assert_eq!(ring.read(head), Some(ticket(i + 1 - u64::from(capacity))));
                assert!(ring.close(head, ring.after(head, 1)));
            }
        }
    }

    #[test]
    fn a_run_is_claimed_whole_or_not_at_all() {
        let ring = EvictionRing::new(5);
        assert_eq!(ring.claim(6), None);
        let first = ring.claim(3).unwrap();
        assert_eq!(ring.claim(3), None);
        assert_eq!(ring.len(), 3);
        assert!(ring.close(first, ring.after(first, 3)));
        let second = ring.claim(5).unwrap();
        assert_eq!(ring.distance(first, second), 3);
        assert_eq!(ring.distance(second, ring.tail()), 5);
    }

    #[test]
    fn a_slot_of_the_next_lap_is_not_taken_for_one_of_this() {
        let ring = EvictionRing::new(2);
        let first = ring.claim(2).unwrap();
        ring.write(first, ticket(1));
        assert!(ring.close(first, ring.after(first, 2)));
        let next_lap = ring.claim(2).unwrap();
        ring.write(next_lap, ticket(2));
        assert_eq!(ring.read(first), None);
        assert_eq!(ring.read(next_lap), Some(ticket(2)));
    }
}
